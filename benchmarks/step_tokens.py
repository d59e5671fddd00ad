"""What --max-batched-tokens costs on this CPU: processor time of the same prompts, in steps of several sizes in turn.

    python -m benchmarks.step_tokens [--model demo|240m] [--dtype float32] [--tokens 256 512 1024 2048] [--rounds 5]
                                     [--length 4000] [--n 2]

Each engine computes `--n` prompts of `--length` tokens. Ratios are of each round to the last of --tokens, in processor
time of one thread: what else runs on the machine does not count.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.model_speed import checkpoint
from configs.settings import EMBEDDED_MODEL
from model.engine.engine import Engine
from model.engine.messages import Generate, SamplingParams
from tests.model.engine.engine_harness import engine_at
from tests.parity.harness import load_ours
from tokenization.placeholders import text_only


def seconds(engine: Engine, prompts: list[np.ndarray]) -> float:
    """Of this process, until each prompt has its token."""
    for i, ids in enumerate(prompts):  # int64 [length]
        sampling = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
        assert engine.submit(Generate(prepared=text_only(str(i), ids.tolist()), sampling=sampling)) is None
    started = time.process_time()
    while not engine.idle:
        engine.step()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["demo", "240m"], default="demo")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tokens", nargs="+", type=int, default=[256, 512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--length", type=int, default=4000)
    parser.add_argument("--n", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_ours(checkpoint() if args.model == "240m" else EMBEDDED_MODEL, getattr(torch, args.dtype))
    room = args.length + 256
    found: dict[int, list[float]] = {tokens: [] for tokens in args.tokens}
    with tempfile.TemporaryDirectory() as folder:
        engines = {
            tokens: engine_at(
                model, Path(folder), block_size=128, seqs=16, tokens=tokens, max_model_len=room,
                kv_tokens=(args.n + 1) * room,
            )
            for tokens in args.tokens
        }  # fmt: skip
        for turn in range(args.rounds + 1):  # the first is thrown away
            prompts = [np.random.default_rng([turn, i]).integers(20, 1000, args.length) for i in range(args.n)]
            for tokens in args.tokens[:: 1 if turn % 2 else -1]:
                found[tokens].append(seconds(engines[tokens], prompts))
    for tokens, taken in found.items():
        ratios = sorted(mine / last for mine, last in zip(taken[1:], found[args.tokens[-1]][1:], strict=True))
        print(
            f"{tokens:5d} tokens: {statistics.median(taken[1:]):7.3f} s, {statistics.median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f}) of {args.tokens[-1]}"
        )


if __name__ == "__main__":
    main()
