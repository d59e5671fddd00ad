"""`make test-npu`: the tests on the real torch_npu in the environment of each pair, and last one line a pair.

What one wheel shows as well as the other runs on one. The project's own tests of what computes with tensors run there
as well, where the pair's torch is not the one of `make test`.
"""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.npu.pairs import PAIRS, REPO, Pair

WHEEL = "tests/npu/wheel"
RANKS = f"{WHEEL}/test_ranks.py"
ONLY_RANKS = "--only-ranks"  # `make test-npu-ranks`
NEWEST, DEPLOYED = PAIRS
ON_ONE = {  # mistakes in the project's own code, whose checks run on both, and what asks no operator a second time
    "test_doctor.py": NEWEST,
    "test_staging.py::test_a_planted_mistake_is_caught": NEWEST,
    "test_planted_graphs.py::test_a_planted_mistake_is_caught": NEWEST,
    "test_models.py::test_media_of_two_requests_in_one_call": NEWEST,
    "test_selftest.py": DEPLOYED,
    "test_server.py": DEPLOYED,
}
OWN = [*(f"tests/model/{part}" for part in ("ops", "net", "engine", "families")), "tests/npu"]
NO_TENSORS = (  # of these: what schedules, books and counts, over models that others compute, and what is text alone
    *(f"tests/model/engine/test_{name}.py" for name in (
        "answers", "block_keys", "cache_protocol", "encoder_budget", "encoder_cache", "kv_blocks", "loop", "parallel",
        "prefix_answers", "prefix_cache", "scheduler", "size_on_device", "table_room", "thoughts", "wrong_hits",
    )),
    *(f"tests/model/families/{name}.py" for name in (
        "fuyu/test_sizes", "qwen_vl/test_chatml", "qwen_vl/test_exchanges", "qwen_vl/test_list_format",
        "qwen_vl/test_vocabulary",
    )),
    "tests/model/engine/ranks", "tests/model/engine/scheduling", "tests/npu/test_pairs.py",
)  # fmt: skip
FAMILY = "test_a_family["


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    passed: tuple[str, ...]  # names of test functions with their parameters
    failed: int
    seconds: float


def at_once() -> list[Outcome]:
    """The tests on the real torch_npu: of all pairs at once, a process each, which two cores share best."""
    with ThreadPoolExecutor(len(PAIRS)) as pool:
        return [*pool.map(lambda pair: _pytest(pair, "npu", words_of(pair), shown=pair is NEWEST), PAIRS)]


def words_of(pair: Pair) -> list[str]:
    """For pytest: what runs on the real torch_npu of a pair."""
    if ONLY_RANKS in sys.argv:
        return ["-m", "npu", RANKS]
    elsewhere = [name for name, its in ON_ONE.items() if its is not pair]
    return ["-m", "npu", WHEEL, *(f"--deselect={WHEEL}/{name}" for name in elsewhere)]


def line_of(pair: Pair, outcomes: Sequence[Outcome]) -> str:
    families = sorted({name[len(FAMILY) : -1].split("-")[0] for name in outcomes[0].passed if name.startswith(FAMILY)})
    failed = sum(outcome.failed for outcome in outcomes)
    counts = " + ".join(str(len(outcome.passed)) for outcome in outcomes)
    return (
        f"torch {pair.torch}, torch_npu {pair.torch_npu}: {counts} tests passed"
        f"{f', {failed} FAILED' if failed else ''} in {sum(outcome.seconds for outcome in outcomes):.0f} s; "
        f"families: {', '.join(families) or 'none'}"
    )


def _pytest(pair: Pair, name: str, words: Sequence[str], *, processes: int = 1, shown: bool = True) -> Outcome:
    """processes: beside pytest's own, which has no torch_npu. shown: as it comes; else once it has ended."""
    report, log = pair.home / f"{name}.xml", pair.home / f"{name}.log"
    report.unlink(missing_ok=True)
    command = [str(pair.python), "-m", "pytest", "--quiet", f"--junit-xml={report}", *words]
    command += [word for word in sys.argv[1:] if word != ONLY_RANKS]
    command += ["--numprocesses", str(processes), "--dist", "loadfile"]
    with log.open("w") as out:
        subprocess.run(command, cwd=REPO, check=False, stdout=None if shown else out, stderr=subprocess.STDOUT)
    print(log.read_text(), end="", flush=True)
    return _read(report)


def _read(report: Path) -> Outcome:
    if not report.exists():
        return Outcome(passed=(), failed=1, seconds=0.0)
    suite = next(ElementTree.parse(report).iter("testsuite"))
    passed = tuple(case.attrib["name"] for case in suite.iter("testcase") if not len(case))
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return Outcome(passed=passed, failed=failed, seconds=float(suite.attrib["time"]))


def main() -> int:
    """1 where a test failed, or none ran."""
    found = [[outcome] for outcome in at_once()]
    for pair, outcomes in zip(PAIRS, found, strict=True):
        if pair.torch != NEWEST.torch and ONLY_RANKS not in sys.argv:
            words = [*OWN, *(f"--ignore={name}" for name in NO_TENSORS)]
            outcomes.append(_pytest(pair, "own", words, processes=2))
    for pair, outcomes in zip(PAIRS, found, strict=True):
        print(line_of(pair, outcomes))
    return 0 if all(one.passed and not one.failed for outcomes in found for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
