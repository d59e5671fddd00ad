"""`make test-npu`: the tests on the real torch_npu in the environment of each pair, and last one line a pair.

The project's own tests of the networks run there as well, where the pair's torch is not the one of `make test`.
"""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.npu.pairs import PAIRS, REPO, Pair

WHEEL = "tests/npu/wheel"
RANKS = f"{WHEEL}/test_ranks.py"
ONLY_RANKS = "--only-ranks"  # `make test-npu-ranks`
OWN = [*(f"tests/model/{part}" for part in ("ops", "net", "engine", "families")), "tests/npu"]
FAMILY = "test_a_family["


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    passed: tuple[str, ...]  # names of test functions with their parameters
    failed: int
    seconds: float


def run(pair: Pair) -> tuple[bool, str]:
    """Whether everything passed, and the pair's line."""
    alone = ONLY_RANKS in sys.argv
    outcomes = [_pytest(pair, "npu", ["-m", "npu", RANKS if alone else WHEEL])]
    if pair.torch != PAIRS[0].torch and not alone:
        outcomes.append(_pytest(pair, "own", OWN))
    families = sorted({name[len(FAMILY) : -1].split("-")[0] for name in outcomes[0].passed if name.startswith(FAMILY)})
    failed = sum(outcome.failed for outcome in outcomes)
    counts = " + ".join(str(len(outcome.passed)) for outcome in outcomes)
    line = (
        f"torch {pair.torch}, torch_npu {pair.torch_npu}: {counts} tests passed"
        f"{f', {failed} FAILED' if failed else ''} in {sum(outcome.seconds for outcome in outcomes):.0f} s; "
        f"families: {', '.join(families) or 'none'}"
    )
    return failed == 0 and all(outcome.passed for outcome in outcomes), line


def _pytest(pair: Pair, name: str, words: Sequence[str]) -> Outcome:
    report = pair.home / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [str(pair.python), "-m", "pytest", "--quiet", f"--junit-xml={report}", *words]
    command += [word for word in sys.argv[1:] if word != ONLY_RANKS]
    subprocess.run([*command, "--numprocesses", "2", "--dist", "loadfile"], cwd=REPO)
    return _read(report)


def _read(report: Path) -> Outcome:
    if not report.exists():
        return Outcome(passed=(), failed=1, seconds=0.0)
    suite = next(ElementTree.parse(report).iter("testsuite"))
    passed = tuple(case.attrib["name"] for case in suite.iter("testcase") if not len(case))
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return Outcome(passed=passed, failed=failed, seconds=float(suite.attrib["time"]))


if __name__ == "__main__":
    results = [run(pair) for pair in PAIRS]
    for _, line in results:
        print(line)
    sys.exit(0 if all(right for right, _ in results) else 1)
