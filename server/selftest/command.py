"""`pixelferry selftest`: whether this device computes what the models ask for, and how fast; a file to send back.

It needs no model. Each section runs in a process of its own, so that a crash or a hang costs the rest of one section.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from configs.nearest import FlagParser
from configs.serve import Device
from configs.settings import child_env
from model.selftest.rows import CaseResult, Opened, Said
from server.engine_environment import of_engine
from server.selftest.children import run_section
from server.selftest.report import Observed, as_end, as_head, as_json, as_line, as_matrix, report, unnamed

SECTIONS = (
    "known", "operators", "profile", "graphs", "contexts", "copies", "matmul", "nz", "encoder", "models", "points",
    "ranks", "stale",
)  # fmt: skip
GIVEN = "given"  # of --model
RANKS = "ranks"
GOOD, FAILED, USAGE = 0, 1, 2
# The child loads a device's plugin by itself and says what is missing; torch would end it with a trace.
_ENVIRONMENT = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

# On two cores of x86-64. They stand in front, so that minutes of work do not look like a hang.
_LENGTHS = {True: "about 1 minute on an idle machine, a few on a busy one", False: "3 minutes or more"}
_WHAT = (
    "Whether this device computes what the models ask for, and how fast. It needs no model, and may have one. It takes "
    f"{_LENGTHS[False]}, --quick {_LENGTHS[True]}."
)

Start = Callable[[str], Sequence[str]]
"""The command of a section."""


def selftest(argv: Sequence[str], look: Callable[[Device], Observed]) -> int:
    """Print a row for each thing tried; the exit code: 1 where one failed. look: asked where a file is written."""
    args = _parser().parse_args(argv)

    def start(section: str) -> list[str]:
        words = [section, args.device, "quick" if args.quick else "full"]
        more = {GIVEN: [str(args.model)], RANKS: [str(args.ranks)]}.get(section, [])
        return [sys.executable, "-m", "model.selftest", *words, *more]

    if args.json is not None and not args.json.absolute().parent.is_dir():
        print(f"pixelferry selftest: --json {args.json}: there is no such directory", file=sys.stderr)
        return USAGE
    if args.model is not None and not (args.model / "config.json").is_file():
        print(f"pixelferry selftest: --model {args.model}: there is no config.json in it", file=sys.stderr)
        return USAGE
    return run(args, start, look)


def run(args: argparse.Namespace, start: Start, look: Callable[[Device], Observed]) -> int:
    begun = time.monotonic()
    rows: list[CaseResult] = []
    opened: list[Opened] = []

    def hear(said: Said) -> None:
        if isinstance(said, Opened):
            if not opened:
                print(as_head(said), flush=True)
            opened.append(said)
        elif isinstance(said, CaseResult):
            rows.append(unnamed(said, args.model))
            print(as_line(rows[-1]), flush=True)

    sections = [*(args.only or SECTIONS), *([GIVEN] if args.model else [])]
    takes = "" if args.only else f", {_LENGTHS[args.quick]}"
    print(f"{len(sections)} section{'s' * (len(sections) > 1)}{takes}", file=sys.stderr, flush=True)
    for n, section in enumerate(sections, 1):
        before = len(opened)
        print(f"[{n}/{len(sections)}] {section}, after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        run_section(section, start(section), of_engine(child_env(_ENVIRONMENT)), hear)
        if len(opened) == before:  # no device, and none for the sections to come
            break
    taken = time.monotonic() - begun
    seen: Observed = ({}, []) if args.json is None else look(args.device)
    found = report(opened[0] if opened else None, rows, args.quick, taken, args.device, seen)
    print(f"\n{as_matrix(rows)}\n\n{as_end(found)}")
    if args.json is not None:
        args.json.write_bytes(as_json(found))
        print(f"written to {args.json}: docs/npu.md says where to send it")
    return GOOD if found.verdict == "pass" else FAILED


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(prog="pixelferry selftest", allow_abbrev=False, description=_WHAT)
    parser.add_argument("--device", choices=get_args(Device), default="auto")
    parser.add_argument("--quick", action="store_true", help="the same rows, short answers, and times of one call each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows and versions, without a host's name")
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="compare this checkpoint's log-probabilities with the CPU's as well"
    )
    parser.add_argument(
        "--ranks", type=int, choices=(1, 2, 4), default=1, help="try so many devices together, a process each"
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of {', '.join(SECTIONS)}")
    return parser
