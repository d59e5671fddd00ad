"""The independent exam of the embedded model, through a running server: `make exam ARGS="--base-url URL"`.

    python -m benchmarks.independent_exam --base-url http://127.0.0.1:8000 [--questions 1000] [--seed 39]
        [--rows "count one kind" JSON] [--at-once 2] [--out exam.json]

Media are drawn by code that shares nothing with what trains the model: Skia instead of Pillow, palettes, fonts,
timbres and wordings of its own, and five looks (flat, gradient, outline, paint program, phone noise). Things do not
overlap, and each is at least a tenth of the picture's shorter side. The module `scoring` has the rules. Prints a table
with 95 % Wilson intervals, then a line of JSON. Nothing of this exam may enter training.
"""

import argparse
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx

from benchmarks.independent_exam.asking import ask_row
from benchmarks.independent_exam.rows import ROWS

SEED = 39


def main() -> None:
    """Ask every wanted row, telling each as soon as it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.independent_exam")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--questions", type=int, default=1000, help="of each row")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--rows", nargs="+", choices=tuple(ROWS), default=list(ROWS), metavar="ROW", help=", ".join(ROWS)
    )
    parser.add_argument("--at-once", type=int, default=2, help="requests in flight")
    parser.add_argument("--out", type=Path, help="a file for the JSON, written anew after each row")
    given = parser.parse_args()
    if min(given.questions, given.at_once) < 1:
        parser.error("--questions and --at-once are at least 1")
    told: dict[str, Any] = {
        "seed": given.seed,
        "began": datetime.now(timezone.utc).isoformat("T", "seconds"),
        "rows": [],
    }
    with httpx.Client(base_url=given.base_url, timeout=300) as http:
        told["server"] = http.get("/version").json()["version"]
        told["model"] = http.get("/v1/models").json()["data"][0]["id"]
        for row in given.rows:
            result = ask_row(http, row, given.questions, given.seed, given.at_once).as_json()
            told["rows"].append(result)
            print(f"{row}: {result['right']} of {result['asked']}", file=sys.stderr, flush=True)
            if given.out:
                given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(table(told["rows"]))
    print(json.dumps(told))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown; of each its parts, too, right of asked."""
    lines = ["| row | right | of | % | 95 % | by part |", "|---|---|---|---|---|---|"]
    for row in rows:
        low, high = row["interval"]
        parts = ", ".join(f"{part} {right}/{asked}" for part, (right, asked) in row["parts"].items())
        lines.append(
            f"| {row['row']} | {row['right']} | {row['asked']} | {row['percent']} | {low} to {high} | {parts} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
