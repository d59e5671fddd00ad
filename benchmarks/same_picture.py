"""What a question about a picture takes up to its first token: a new picture, the same one again, and without a cache.

    python -m benchmarks.same_picture [--rounds 9] [--side 448]

Worker and engine in this process, taking turns: seconds are of its processor, with one thread, from the chat to the
first token. Of each round the picture is new, and the three questions differ. The model is the one of
benchmarks.model_speed.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import torch

from benchmarks.model_speed import checkpoint
from model.engine.engine import Engine
from tests.model.engine.engine_harness import GREEDY, EngineHarness, Parts, engine_at, engine_harness_at, picture
from tests.parity.harness import load_ours

FIRST = msgspec.structs.replace(GREEDY, max_tokens=1)


def first_token(engine: Engine, harness: EngineHarness, name: str, side: int, seed: int, salt: bytes) -> float:
    """Milliseconds from a chat to its first token."""
    parts: Parts = [picture(side, side, seed), f"question {name}"]
    started = time.process_time()
    harness.submit(engine, harness.prepare(name, parts, FIRST, salt))
    while name not in harness.events:
        harness.book(engine.step())
    return (time.process_time() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--side", type=int, default=448, help="of a picture, in pixels")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, path = load_ours(checkpoint()), checkpoint()
    taken: dict[str, list[float]] = {"without a cache": [], "a new picture": [], "the same picture": []}
    with tempfile.TemporaryDirectory() as folder, engine_harness_at(path, Path(folder) / "root") as harness:
        off, on = (
            engine_at(
                model, harness.root, tokens=2048, block_size=128, kv_tokens=1 << 14, max_model_len=4096,
                embedding_bytes=1 << 28, keeps=keeps,
            )
            for keeps in (False, True)
        )  # fmt: skip
        for turn in range(args.rounds + 1):
            found = (
                first_token(off, harness, f"off-{turn}", args.side, turn, b""),
                first_token(on, harness, f"new-{turn}", args.side, turn, b"s" * 32),
                first_token(on, harness, f"same-{turn}", args.side, turn, b"s" * 32),
            )
            if turn:  # the first round warms up
                for times, one in zip(taken.values(), found, strict=True):
                    times.append(one)
    base = taken["without a cache"]
    for name, times in taken.items():
        ratios = sorted(np.array(times) / np.array(base))
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        print(f"{name:16s} median {statistics.median(times):7.1f} ms   ratio {spread}")


if __name__ == "__main__":
    main()
