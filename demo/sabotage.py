"""`python -m demo sabotage`: does accuracy fall when the path from file to answer is broken on purpose?

Each fault is one line changed in a copy of the server's own code, or other media sent; a server is started on each.
A fault that leaves accuracy as it was would mean that the measurement does not see it.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.exam import Row, chosen_rows
from demo.examiner import Examiner

REPO = Path(__file__).resolve().parents[1]
ROOMS = ("server", "model", "tokenization", "shm", "configs")
_READY = re.compile(r"^Pixelferry ready on (http://\S+)$", re.MULTILINE)
_PATIENCE = 180.0  # seconds for a start, on a machine that does other things too
_ROWS = "thing,count,where,number,which_has,motion,beeps,pitch,sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is broken: `old` becomes `new` in a file of the server; without a file, nothing is."""

    name: str
    says: str
    path: str = ""
    old: str = ""
    new: str = ""

    def plant(self, root: Path) -> None:
        """Break a copy of the code. Raises ValueError where the line is not there exactly once."""
        if not self.path:
            return
        text = (root / self.path).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.path} holds {text.count(self.old)} times {self.old!r}, not once")
        (root / self.path).write_text(text.replace(self.old, self.new), encoding="utf-8")


INTACT = Fault(name="intact", says="nothing is changed")
SWAPPED = Fault(name="swapped media", says="each question comes with the media of the next one")
FAULTS = (
    SWAPPED,
    Fault(
        name="wrong normalisation",
        says="pixels get a mean of 0 and a deviation of 0.25, whatever the checkpoint says",
        path="model/net/vision.py",
        old="""mean=pictures.numbers("image_mean", mean),
        std=pictures.numbers("image_std", std),""",
        new="""mean=(0.0, 0.0, 0.0),
        std=(0.25, 0.25, 0.25),""",
    ),
    Fault(
        name="wrong mel",
        says="the bands of the mel spectrum come in reverse order",
        path="tokenization/media/mel.py",
        old="    return out\n",
        new="    return out[:, ::-1].copy()\n",
    ),
    Fault(
        name="shifted places",
        says="each patch gets the row and column of the one seven before it in the vision tower",
        path="model/net/rope.py",
        old="dim=1).float()  # [h * w, 2]",
        new="dim=1).float().roll(7, 0)",
    ),
    Fault(
        name="shifted positions",
        says="each token of a picture or clip gets the place in time, height and width of the one seven before it",
        path="model/grids/positions.py",
        old="    return found.reshape(3, -1)\n",
        new="    return np.roll(found.reshape(3, -1), 7, axis=1)\n",
    ),
)


def copy_code(source: Path, root: Path) -> None:
    """The server's rooms, to be broken."""
    for room in ROOMS:
        shutil.copytree(source / room, root / room, ignore=shutil.ignore_patterns("__pycache__", "embedded"))


@contextmanager
def serving(root: Path, model: Path, logs: Path) -> Iterator[str]:
    """A server made of the code in `root`; its URL. Raises RuntimeError with its log if it does not come up."""
    out, err = logs / "out.txt", logs / "err.txt"
    command = [sys.executable, "-m", "server", "serve", "--model", str(model.resolve()), "--port", "0"]
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen(command, cwd=root, stdout=out_file, stderr=err_file)
    try:
        deadline = time.monotonic() + _PATIENCE
        while not (match := _READY.search(out.read_text(encoding="utf-8"))):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server: {err.read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.1)
        yield match[1]
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def accuracy(fault: Fault, code: Path, model: Path, rows: Sequence[Row], count: int, seed: int) -> list[float]:
    """The share of right answers in each row, with this fault in a copy of `code`."""
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        root, logs = Path(folder, "code"), Path(folder, "logs")
        logs.mkdir()
        copy_code(code, root)
        fault.plant(root)
        with serving(root, model, logs) as url, closing(Examiner(url, swapped=fault is SWAPPED)) as examiner:
            results = [examiner.examine(row, count, seed) for row in rows]
    return [result.right / result.asked for result in results]


def main(argv: Sequence[str]) -> int:
    """Measure intact and with each fault, and print all as one table."""
    parser = argparse.ArgumentParser(prog="python -m demo sabotage", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("build/demo/checkpoint"), help="checkpoint directory")
    parser.add_argument("--per-task", type=int, default=60, help="items of each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=_ROWS, help="rows with commas between them")
    told = parser.parse_args(argv)
    try:
        rows = chosen_rows(told.only)
    except ValueError as error:
        parser.error(str(error))
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        code = Path(folder, "code")  # all faults break the same code, also where somebody edits it meanwhile
        copy_code(REPO, code)
        for fault in (INTACT, *FAULTS):
            print(f"{fault.name}: {fault.says}", flush=True)
            found[fault.name] = accuracy(fault, code, told.model, rows, told.per_task, told.seed)
    wide = max(map(len, found))
    print("\n| row | " + " | ".join(found) + " |\n|" + "---|" * (len(found) + 1))
    for i, row in enumerate(rows):
        print(f"| {row.label} | " + " | ".join(f"{shares[i]:.0%}" for shares in found.values()) + " |")
    print(f"\n{'mean':{wide}}")
    for name, shares in found.items():
        print(f"{name:{wide}}  {sum(shares) / len(shares):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
