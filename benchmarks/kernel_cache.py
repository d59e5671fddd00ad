"""What it costs to keep few of oneDNN's compiled kernels, and what memory many take: engines in turn, mixed load.

    python -m benchmarks.kernel_cache [--model demo|240m] [--dtype float32] [--kept 1024 128 16] [--rounds 5]
                                      [--requests 40] [--decode N] [--seqs 16]

A kernel is compiled for one number of rows of one linear, so each new size of a step brings several. Each number of
--kept is a process of its own with that many (torch's list of them and oneDNN's). In each round all get the same
requests, one after the other: texts of 8 to 600 tokens that come at random steps, answers of 8 to 64; with --decode N
prompts of 8 tokens and N answers of 64 that begin one step after the other, so that nearly all is decoding. Seconds are
of the processor, one thread; ratios are to the first of --kept, of one round.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def serve(args: argparse.Namespace) -> None:
    """One process: for each seed on stdin its seconds and the MiB that it has then."""
    import torch

    from benchmarks.model_speed import checkpoint
    from configs.settings import EMBEDDED_MODEL
    from model.engine.messages import Generate, SamplingParams
    from tests.model.engine.engine_harness import engine_at
    from tests.parity.harness import load_ours
    from tokenization.placeholders import text_only

    torch.set_num_threads(1)
    model = load_ours(checkpoint() if args.model == "240m" else EMBEDDED_MODEL, getattr(torch, args.dtype))
    with tempfile.TemporaryDirectory() as folder:
        engine = engine_at(
            model, Path(folder), seqs=args.seqs, tokens=256, kv_tokens=1 << 15, max_model_len=1024, prefix_cache="off"
        )
        for line in sys.stdin:
            rng = np.random.default_rng(int(line))
            n, longest = (args.decode, 9) if args.decode else (args.requests, 600)
            waiting = [
                Generate(
                    prepared=text_only(str(i), rng.integers(0, 250, rng.integers(8, longest)).tolist()),
                    sampling=SamplingParams(
                        max_tokens=64 if args.decode else int(rng.integers(8, 65)), temperature=0.0, seed=0,
                    ),
                )
                for i in range(n)
            ]  # fmt: skip
            started = time.process_time()
            while waiting or not engine.idle:
                if waiting and (args.decode or engine.idle or rng.random() < 0.2):
                    assert engine.submit(waiting.pop()) is None
                engine.step()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            print(time.process_time() - started, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["demo", "240m"], default="demo")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--kept", nargs="+", type=int, default=[1024, 128, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--decode", type=int, default=0)
    parser.add_argument("--seqs", type=int, default=16)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args)
    engines = {
        kept: subprocess.Popen(
            [sys.executable, "-m", "benchmarks.kernel_cache", "--serve", *sys.argv[1:]], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **dict.fromkeys(VARIABLES, str(kept))},
        )
        for kept in args.kept
    }  # fmt: skip
    found: dict[int, list[tuple[float, float]]] = {kept: [] for kept in engines}
    for seed in range(args.rounds + 1):
        for kept, engine in engines.items():
            assert engine.stdin is not None and engine.stdout is not None
            print(seed, file=engine.stdin, flush=True)
            seconds, mib = map(float, engine.stdout.readline().split())
            found[kept].append((seconds, mib))
    for kept, rounds in found.items():
        seconds_of = [seconds for seconds, _ in rounds[1:]]  # the first warms up
        ratios = sorted(a / b for a, (b, _) in zip(seconds_of, found[args.kept[0]][1:], strict=True))
        print(
            f"kept {kept:5d}: {statistics.median(seconds_of):7.2f} s, ratio {statistics.median(ratios):.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f}); MiB after each round {[round(mib) for _, mib in rounds]}"
        )
    for engine in engines.values():
        assert engine.stdin is not None
        engine.stdin.close()
        engine.wait()


if __name__ == "__main__":
    main()
