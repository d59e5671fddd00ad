"""Find which mutants the tests see.

    .venv/bin/python -m tests.mutants.run map   TREE build/mutants-1.json --into build/map.json
    .venv/bin/python -m tests.mutants.run judge TREE build/mutants-1.json --map build/map.json --into build/seen.json

TREE is a clone with an environment of its own (`make venv` there), whose files are changed while this runs and put
back at the end. `map` runs `make test` once with a probe before each mutant's line, in whichever process it runs:
which tests execute it, and what each costs. `judge` changes one file at a time and runs those tests, those of the
cheapest file first, until one fails or two minutes are over. A test that fails without the mutant, too, is told and
does not count. A mutant is a changed file, so that a child started by exec runs it as well.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.mutants.draw import Mutant

SECONDS = 120.0  # of a quiet machine, for the tests of one mutant
STYLE = "tests/architecture/"  # its laws see a change of text, not of behaviour
# In site-packages, where every process of the tree's environment finds it.
PROBE = """
import mmap, os
_seen, _now = set(), None
def hit(number):
    global _now
    if _now is None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        try:
            with open("{directory}/now." + worker, "rb") as file:
                _now = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except OSError:
            _now = b""
    test = bytes(_now[:])
    if (number, test) not in _seen:
        _seen.add((number, test))
        file = os.open("{directory}/hits", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(file, b"%d %b\\n" % (number, test.rstrip(b"\\0")))
        os.close(file)
"""
_mtimes = itertools.count(int(time.time()) - 10_000_000)


def _write(path: Path, data: bytes) -> None:
    """With a time of its own, so that no compiled file of another content is taken for this one's."""
    path.write_bytes(data)
    stamp = next(_mtimes)
    os.utime(path, (stamp, stamp))


def _pytest(tree: Path, directory: Path, *args: str, seconds: float | None = None) -> tuple[int | None, str]:
    """The exit status, None when it ran out of time; and the end of what it printed. All that it started is ended."""
    command = [".venv/bin/python", "-m", "pytest", "-p", "tests.mutants.plugin", "-p", "no:cacheprovider", "-q", *args]
    variables = {**os.environ, "MUTANTS_DIRECTORY": str(directory)}
    started = subprocess.Popen(
        command, cwd=tree, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = started.communicate(timeout=seconds)
        return started.returncode, said[-6000:]
    except subprocess.TimeoutExpired:
        subprocess.run(["pkill", "-KILL", "-s", str(started.pid)], check=False)
        started.kill()
        said, _ = started.communicate()
        return None, said[-6000:]


def _map(tree: Path, mutants: list[Mutant], directory: Path, args: list[str]) -> dict[str, Any]:
    packages = next((tree / ".venv" / "lib").glob("python3.*")) / "site-packages"
    (packages / "_mutant_probe.py").write_text(PROBE.format(directory=directory))
    by_path: dict[str, list[Mutant]] = defaultdict(list)
    for one in mutants:
        by_path[one.path].append(one)
    kept = {path: (tree / path).read_bytes() for path in by_path}
    try:
        for path, ones in by_path.items():
            lines = kept[path].decode().splitlines(keepends=True)
            for one in sorted(ones, key=lambda one: -one.probe_line):
                line = lines[one.probe_line - 1]
                indent = line[: len(line) - len(line.lstrip())]
                lines.insert(one.probe_line - 1, f'{indent}__import__("_mutant_probe").hit({one.number})\n')
            _write(tree / path, "".join(lines).encode())
        status, said = _pytest(tree, directory, "--numprocesses", "2", "--dist", "loadfile", *args)
    finally:
        for path, data in kept.items():
            _write(tree / path, data)
    costs: dict[str, float] = {}
    for file in directory.glob("costs.*"):
        costs |= {row["test"]: max(row["cpu"], row["wall"]) for row in map(json.loads, file.read_text().splitlines())}
    hits = {one.number: dict.fromkeys(_importing(tree, one.path, costs) if one.at_import else ()) for one in mutants}
    for line in (directory / "hits").read_text(errors="replace").splitlines():
        number, _, test = line.partition(" ")
        if test in costs and not test.startswith(STYLE):
            hits[int(number)][test] = None
    return {
        "status": status,
        "said": said,
        "costs": costs,
        "hits": {number: list(tests) for number, tests in hits.items()},
    }


def _importing(tree: Path, path: str, costs: dict[str, float]) -> list[str]:
    """The tests of the files that import a module: what it does at import is done before any test begins."""
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    files = [file.relative_to(tree).as_posix() for file in (tree / "tests").rglob("test_*.py")
             if re.search(rf"\b{re.escape(dotted)}\b", file.read_text(encoding="utf-8"))]  # fmt: skip
    return [test for test in costs if test.partition("::")[0] in files and not test.startswith(STYLE)]


def _in_order(hits: list[str], costs: dict[str, float]) -> list[str]:
    """By file, the cheapest first, and as many as two minutes hold; at least one file's."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in hits:
        files[test.partition("::")[0]].append(test)
    found: list[str] = []
    spent = 0.0
    for tests in sorted(files.values(), key=lambda tests: sum(costs[one] for one in tests)):
        spent += sum(costs[one] for one in tests)
        if found and spent > SECONDS:
            break
        found += tests
    return found


def _failed(tree: Path, directory: Path, tests: list[str], seconds: float) -> tuple[str, str]:
    """The test that failed first ("" where none did), and how the run ended."""
    (directory / "wanted.json").write_text(json.dumps(tests))
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    ended, said = _pytest(tree, directory, "-x", "-m", "", *files, seconds=seconds)
    failed = [
        line.split(" - ")[0].split(" ", 1)[1] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))
    ]
    return (failed[0] if failed else ""), "out of time" if ended is None else f"exit {ended}"


def _judge(tree: Path, one: Mutant, mapped: dict[str, Any], directory: Path, seconds: float) -> dict[str, Any]:
    tests = _in_order(mapped["hits"].get(str(one.number), []), mapped["costs"])
    row: dict[str, Any] = {
        **{name: getattr(one, name) for name in ("number", "stratum", "path", "line", "was", "text")},
        **{"n_tests": len(tests), "seen": False, "by": "", "ended": "no test runs it"},
    }
    begun = time.monotonic()
    for _ in range(3):  # of tests that fail without it, too
        if not tests:
            break
        before = (tree / one.path).read_bytes()
        try:
            _write(tree / one.path, before[: one.start] + one.text.encode() + before[one.end :])
            failed, row["ended"] = _failed(tree, directory, tests, seconds)
        finally:
            _write(tree / one.path, before)
        if row["ended"] == "exit 0":
            break
        if row["ended"] == "out of time":
            # Its tests took less than half of that: it holds one of them still.
            row["seen"] = sum(mapped["costs"][test] for test in tests) < SECONDS / 2
            break
        again = _failed(tree, directory, [failed] if failed in tests else tests[:1], seconds)
        if again[1] == "exit 0":
            row |= {"seen": True, "by": failed}
            break
        row.setdefault("unsteady", []).append([failed, again[1]])
        tests = [test for test in tests if test != failed] if failed in tests else []
    return {**row, "seconds": round(time.monotonic() - begun, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["map", "judge"])
    parser.add_argument("tree", type=Path)
    parser.add_argument("mutants", type=Path)
    parser.add_argument("--map", type=Path)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--part", default="0/1", help="of the mutants, for several trees beside each other: 0/2, 1/2")
    parser.add_argument("--patience", type=float, default=1.5, help="times two minutes that a mutant's tests may take")
    parser.add_argument("args", nargs="*", help="more arguments of pytest, after --")
    asked = parser.parse_args()
    mutants = [Mutant(**one) for one in json.loads(asked.mutants.read_text())]
    tree, directory = asked.tree.resolve(), asked.into.resolve().with_suffix(".d")
    directory.mkdir(parents=True, exist_ok=True)
    if asked.do == "map":
        asked.into.write_text(json.dumps(_map(tree, mutants, directory, asked.args), indent=1))
        return
    mapped, (part, parts) = json.loads(asked.map.read_text()), map(int, asked.part.split("/"))
    rows: list[dict[str, Any]] = []
    for one in mutants[part::parts]:
        rows.append(_judge(tree, one, mapped, directory, asked.patience * SECONDS))
        asked.into.write_text(json.dumps(rows, indent=1))
        print(
            json.dumps({name: rows[-1][name] for name in ("number", "path", "seen", "by", "ended", "seconds")}),
            flush=True,
        )
    print(f"{sum(row['seen'] for row in rows)} of {len(rows)} seen", file=sys.stderr)


if __name__ == "__main__":
    main()
