"""`python -m demo train|evaluate|sabotage`: what a person runs."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def train(argv: Sequence[str]) -> int:
    """Train, or go on training."""
    from demo.train import Plan, run  # torch and all: the other commands need none of it

    parser = argparse.ArgumentParser(prog="python -m demo train", description="Train the demo model.")
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo"), help="folder of the run; one that exists goes on"
    )
    parser.add_argument("--steps", type=int, default=6000, help="optimiser steps in all")
    parser.add_argument("--decay", type=int, default=1500, help="over how many of the last the rate falls to nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=len(os.sched_getaffinity(0)), help="processes of one thread each")
    parser.add_argument("--weights", type=Path, help="checkpoint directory that a new run begins with")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--minutes", type=float, default=0, help="end then, with the rate at nothing; 0: by steps")
    parser.add_argument("--decoder-only", action="store_true", help="leave the towers as --weights has them")
    parser.add_argument("--small", action="store_true", help="tiny batches and a rough vocabulary: does it run at all?")
    told = parser.parse_args(argv)
    run(Plan(out=told.out, steps=told.steps, decay=told.decay, seed=told.seed, ranks=told.ranks, rate=told.rate,
             small=told.small, minutes=told.minutes, towers=not told.decoder_only, weights=told.weights))  # fmt: skip
    return 0


def evaluate(argv: Sequence[str]) -> int:
    """Measure a running server."""
    from demo.evaluate import main

    return main(argv)


def sabotage(argv: Sequence[str]) -> int:
    """Measure servers that were broken on purpose."""
    from demo.sabotage import main

    return main(argv)


COMMANDS = {"train": train, "evaluate": evaluate, "sabotage": sabotage}


def main(argv: Sequence[str]) -> int:
    """Run one command; the rest of the line is its own."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    told = parser.parse_args(argv[:1])
    return COMMANDS[told.command](argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
