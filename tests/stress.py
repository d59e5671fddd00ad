"""The tests of processes on a machine that is busy with other things, in a random order: `make stress`.

    python -m tests.stress [--seed SEED] [further words for pytest ...]

Two burners take a processor each as long as the tests run. Those are tests/e2e and tests/server/children, and whatever
has the mark `faults` or `matrix` elsewhere. A test that fails here and not in `make test` judges by time, or heeds what
another left; the seed makes the order again.
"""

import argparse
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
FOLDERS = ("tests/e2e", "tests/server/children")
OTHERS = ("long", "served", "npu", "families", "pages", "ray", "ranks", "training")  # marks of other targets
MARKED = re.compile(r"\bmark\.(faults|matrix)\b")
BURNERS = 2
NO_TESTS = 5  # pytest found none: what words narrow may be in one of the runs alone
# It ends with whoever started it, also where that is killed: its standard input is closed then.
BURNER = """
import os, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
while True:
    pass
"""


@contextmanager
def burning(n: int = BURNERS) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """So many processes that only compute, ended after the block whatever happens in it."""
    burners: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(n):
            burners.append(subprocess.Popen([sys.executable, "-c", BURNER], stdin=subprocess.PIPE))
        yield burners
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.communicate()


def elsewhere() -> list[str]:
    """Other files with one of the marks: to collect all tests for these few takes longer than they do."""
    paths = sorted(path for path in (REPO / "tests").rglob("test_*.py") if MARKED.search(path.read_text("utf-8")))
    names = [path.relative_to(REPO).as_posix() for path in paths]
    return [name for name in names if not name.startswith(FOLDERS)]


def commands(seed: int, words: list[str]) -> list[list[str]]:
    """One run of the folders, and one of the marks elsewhere; `words` stand behind, so that they may narrow both."""
    shared = ["--numprocesses", "2", "--dist", "loadfile", "--random-files", str(seed), *words]
    without = " and ".join(f"not {mark}" for mark in OTHERS)
    return [
        [*FOLDERS, "-m", without, *shared],
        [*elsewhere(), "-m", f"(faults or matrix) and {without}", *shared],
    ]


def main(argv: list[str]) -> int:
    """Run both; the code of the worst."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 16), help="else a new one")
    args, words = parser.parse_known_args(argv)
    print(f"files in random order: make stress ARGS='--seed {args.seed}'", flush=True)
    with burning():
        codes = [
            subprocess.run([sys.executable, "-m", "pytest", *command], cwd=REPO).returncode
            for command in commands(args.seed, words)
        ]
    print(f"the seed was {args.seed}", flush=True)
    return max(0 if code == NO_TESTS and words else code for code in codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
