"""`python -m demo evaluate`: the accuracy card of a running server, on a terminal and as a page."""

import argparse
import datetime
import hashlib
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import httpx

from demo.exam import CHINESE_GOAL, chosen_rows
from demo.examiner import Examiner, Marked, Result
from demo.scoring import wilson

BEGIN, END = "<!-- accuracy: written by `python -m demo evaluate` -->", "<!-- end of accuracy -->"


def counts(right: int, asked: int, goal: float | None) -> tuple[str, str, str, str]:
    """right/asked, share, 95 % interval, goal: the columns of both tables."""
    low, high = wilson(right, asked)
    reached = "" if goal is None else f"{goal:.0%}, {'met' if right / asked >= goal - 1e-9 else 'missed'}"
    return f"{right}/{asked}", f"{right / asked:.1%}", f"{low:.1%} to {high:.1%}", reached


def lines_of(results: Sequence[Result]) -> list[tuple[str, str, str, str, str]]:
    """Label, right/asked, share, interval, goal of each row; all Chinese ones together last."""
    lines = [(one.row.label, *counts(one.right, one.asked, one.row.goal)) for one in results]
    chinese = [one for one in results if one.row.language == "zh"]
    if chinese:
        right, asked = sum(one.right for one in chinese), sum(one.asked for one in chinese)
        lines.append(("Chinese: all of these", *counts(right, asked, CHINESE_GOAL)))
    return lines


def card(results: Sequence[Result], *, command: str, model: str, day: str) -> str:
    """The table in Markdown, with what it was measured on and how."""
    head = "| task | right | share | 95 % interval | goal |\n|---|---|---|---|---|"
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines_of(results))
    ious = [f"{one.mean_iou:.2f} ({one.row.label})" for one in results if one.mean_iou is not None]
    boxes = f"\n\nMean IoU of the boxes: {', '.join(ious)}." if ious else ""
    return f"{day}, `{command}`, {model}:\n\n{head}\n{rows}{boxes}"


def filled(page: str, content: str) -> str:
    """The page with this between its marks. Raises ValueError for a page without them."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n\n{content}\n\n{END}{tail}"


def weights_of(served: dict[str, object]) -> str:
    """The model by name, and by the hash of its weights where its directory is at hand."""
    weights = Path(str(served.get("root", ""))) / "model.safetensors"
    if not weights.is_file():
        return f"model `{served['id']}`"
    return f"weights `{hashlib.sha256(weights.read_bytes()).hexdigest()[:16]}` (sha256)"


def shown(wrong: Marked) -> str:
    """One wrong answer on a line."""
    iou = "" if wrong.iou is None else f"   IoU {wrong.iou:.2f}"
    return f"    asked {wrong.question!r}   wanted {wrong.wanted!r}   said {wrong.said!r}{iou}"


def main(argv: Sequence[str]) -> int:
    """Ask, print, and write the card where one is named."""
    parser = argparse.ArgumentParser(prog="python -m demo evaluate", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="a server that serves the demo model")
    parser.add_argument("--per-task", type=int, default=200, help="items of each row")
    parser.add_argument("--seed", type=int, default=0, help="another one, other items; none of them is trained on")
    parser.add_argument("--only", default="", help="rows with commas between them, such as count,where_zh")
    parser.add_argument("--show", type=int, default=0, metavar="K", help="print K wrong answers of each row")
    parser.add_argument("--at-once", type=int, default=4, help="chats in flight")
    parser.add_argument("--card", type=Path, help="page whose accuracy table is written anew")
    told = parser.parse_args(argv)
    if told.card is not None and told.only:
        parser.error("a card holds all rows; leave --only out")
    with closing(Examiner(told.url, at_once=told.at_once)) as examiner:
        try:  # what can be wrong from the start is found before the work
            rows = chosen_rows(told.only)
            if told.card is not None:
                filled(told.card.read_text(encoding="utf-8"), "")
            served = examiner.served()
        except (ValueError, OSError, httpx.HTTPError) as error:
            parser.error(str(error))
        results = []
        for row in rows:
            results.append(result := examiner.examine(row, told.per_task, told.seed))
            print(f"{row.name:15} {'  '.join(counts(result.right, result.asked, row.goal))}", flush=True)
            for wrong in [one for one in result.marked if not one.right][: told.show]:
                print(shown(wrong))
    print()
    for line in lines_of(results):
        print(f"{line[0]:40} {line[1]:>9} {line[2]:>7}   {line[3]:16}  {line[4]}")
    if told.card is not None:
        command = f"python -m demo evaluate --per-task {told.per_task} --seed {told.seed}"
        content = card(results, command=command, model=weights_of(served), day=datetime.date.today().isoformat())
        told.card.write_text(filled(told.card.read_text(encoding="utf-8"), content), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
