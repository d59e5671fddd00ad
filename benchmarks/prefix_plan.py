"""What the prefix cache costs the scheduler: microseconds of plan and commit, by how many blocks stay cached.

    python -m benchmarks.prefix_plan [--sequences 256] [--cached 1024 4096] [--rounds 3] [--repeats 9]

No tensors. Schedulers of decoding sequences take their steps in turn: one without the cache, and one for each number of
blocks that earlier requests left, all of which are to be evicted one by one. Figures are medians of processor time of
every step, those in which sequences take a new block among them; ratios are medians of the rounds' own.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np

from model.engine.block_keys import chain_root
from model.engine.kv_blocks import BlockAllocator
from model.engine.scheduler import Scheduler
from model.engine.scheduling.step_budget import Limits
from tests.model.engine.bookkeeping import outcome, request

BLOCK = 16  # tokens
PROMPT = 40
ROUND = BLOCK  # steps: each sequence takes one block


def scheduler(n: int, cached: int, *, rounds: int, prefix_cache: bool) -> Scheduler:
    """`n` sequences behind their prompts, over `cached` blocks that nobody holds."""
    length = PROMPT + (rounds + 2) * ROUND
    used = n * -(-(PROMPT + 1) // BLOCK)
    limits = Limits(
        max_seqs=n, max_batched_tokens=max(n * PROMPT, 1 << 16), embedding_bytes=0, prefix_cache=prefix_cache
    )
    found = Scheduler(BlockAllocator(used + cached, BLOCK), limits)
    for i in range(-(-(cached + used) // (n * 2))):  # requests that came and went and left no block blank
        add(found, n, PROMPT, 1, seed=1 + i)
        step(found)
    add(found, n, PROMPT, length - PROMPT, seed=0)
    step(found)
    return found


def add(sched: Scheduler, n: int, prompt: int, tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for i in range(n):
        sequence = request(f"{seed}-{i}", prompt, tokens)
        sequence.ids[:prompt] = rng.integers(10, 1000, prompt)
        sequence.root = chain_root(b"", 0)
        sched.add(sequence)


def step(sched: Scheduler) -> tuple[float, float]:
    """Seconds of plan, and of plan and commit."""
    start = time.process_time()
    plan = sched.plan()
    planned = time.process_time()
    drawn = outcome({key: 1 for chunk in plan.chunks for key in chunk.sampled_keys}, plan=plan)
    before = time.process_time()
    sched.commit(plan, drawn)
    return planned - start, planned - start + time.process_time() - before


def measure(n: int, cached: Sequence[int], rounds: int, repeats: int) -> None:
    """One line for each way."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("off", *map(str, cached))}
    for _ in range(repeats):
        left = turns(n, cached, rounds, taken)
    for name in taken:
        plan, both = (statistics.median(times) / ROUND * 1e6 for times in zip(*taken[name], strict=True))
        ratios = [
            statistics.median(mine[i] / off[i] for mine, off in zip(taken[name], taken["off"], strict=True))
            for i in range(2)
        ]
        print(
            f"{n} sequences, cached {name:>5s} ({left[name]} left): plan {plan:6.0f} us ({ratios[0]:.2f} of off), "
            f"with commit {both:6.0f} us ({ratios[1]:.2f})"
        )


def turns(n: int, cached: Sequence[int], rounds: int, taken: dict[str, list[tuple[float, float]]]) -> dict[str, int]:
    """Steps of new schedulers, in turn. -> blocks that stayed"""
    ways = {"off": scheduler(n, cached[-1], rounds=rounds, prefix_cache=False)}
    ways |= {str(many): scheduler(n, many, rounds=rounds, prefix_cache=True) for many in cached}
    for _ in range(rounds):
        steps = {name: [0.0, 0.0] for name in ways}
        for _ in range(ROUND):
            for name, sched in ways.items():
                for i, seconds in enumerate(step(sched)):
                    steps[name][i] += seconds
        for name, (plan, both) in steps.items():
            taken[name].append((plan, both))
    return {name: len(sched.allocator._kept) for name, sched in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--cached", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=3, help="of 16 steps; each takes a block for each sequence")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    measure(args.sequences, args.cached, args.rounds, args.repeats)


if __name__ == "__main__":
    main()
