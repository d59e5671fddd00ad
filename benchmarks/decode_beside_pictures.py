"""How long decodes wait for their next token while pictures arrive, against a step with a full chunk of a prompt.

    python -m benchmarks.decode_beside_pictures [--rounds 3] [--pictures 12] [--side 224] [--encoder-tokens 128]

16 chats decode; then so many chats with one picture each arrive at once. Each decode has a token in each step, so the
time between its tokens is that of the step. Seconds are of this thread's processor, with one thread: what else runs on
the machine does not count. The model is the one of benchmarks.model_speed.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import torch
from PIL import Image

from benchmarks.model_speed import checkpoint
from model.engine.engine import Engine
from tests.model.engine.engine_harness import GREEDY, EngineHarness, engine_at, engine_harness_at
from tests.parity.harness import load_ours

DECODES = 16
LONG = "brown fox " * 400  # a prompt that fills a step for several steps


def steps(engine: Engine, harness: EngineHarness, until: set[str]) -> list[float]:
    """Milliseconds of each step until all of these have a token."""
    taken = []
    while not until <= harness.events.keys():
        started = time.thread_time()
        messages = engine.step()
        taken.append((time.thread_time() - started) * 1e3)
        harness.book(messages)
    return taken


def one_round(engine: Engine, harness: EngineHarness, turn: int, pictures: int, side: int) -> dict[str, list[float]]:
    """Milliseconds of steps, by what arrived."""
    decoding = {f"decode-{turn}-{i}" for i in range(DECODES)}
    for name in sorted(decoding):
        harness.submit(
            engine, harness.prepare(name, [f"{name} goes on"], msgspec.structs.replace(GREEDY, max_tokens=400))
        )
    steps(engine, harness, decoding)
    found: dict[str, list[float]] = {"decodes alone": []}
    for _ in range(6):
        started = time.thread_time()
        harness.book(engine.step())
        found["decodes alone"].append((time.thread_time() - started) * 1e3)
    short = msgspec.structs.replace(GREEDY, max_tokens=1)
    harness.submit(engine, harness.prepare(f"long-{turn}", [LONG], short))
    found["a full chunk"] = steps(engine, harness, {f"long-{turn}"})
    arrived = {f"picture-{turn}-{i}" for i in range(pictures)}
    for i, name in enumerate(sorted(arrived)):
        pixels = np.random.default_rng(100 * turn + i).integers(0, 256, (side, side, 3), dtype=np.uint8)
        harness.submit(engine, harness.prepare(name, ["look: ", Image.fromarray(pixels), "what is it?"], short))
    found["pictures"] = steps(engine, harness, arrived)
    for name in decoding:
        harness.book([end for end in [engine.abort(name)] if end is not None])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=12)
    parser.add_argument("--side", type=int, default=224, help="of a picture, in pixels")
    parser.add_argument("--tokens", type=int, default=256, help="--max-batched-tokens")
    parser.add_argument("--encoder-tokens", type=int, help="--max-encoder-tokens")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, path = load_ours(checkpoint()), checkpoint()
    rounds = []
    with tempfile.TemporaryDirectory() as folder, engine_harness_at(path, Path(folder) / "root") as harness:
        engine = engine_at(
            model, harness.root, seqs=32, tokens=args.tokens, block_size=128, kv_tokens=1 << 15, max_model_len=8192,
            embedding_bytes=1 << 28, encoder_tokens=args.encoder_tokens,
        )  # fmt: skip
        for turn in range(args.rounds):
            rounds.append(one_round(engine, harness, turn, args.pictures, args.side))
    for name in rounds[0]:
        p99 = statistics.median(float(np.percentile(found[name], 99)) for found in rounds)
        middle = statistics.median(statistics.median(found[name]) for found in rounds)
        n = statistics.median(len(found[name]) for found in rounds)
        whole = statistics.median(sum(found[name]) for found in rounds)
        print(f"{name:14s} {n:4.0f} steps   median {middle:7.1f} ms   p99 {p99:7.1f} ms   together {whole:7.0f} ms")


if __name__ == "__main__":
    main()
