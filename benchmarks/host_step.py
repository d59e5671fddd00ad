"""What the host does in a decode step: microseconds of plan, build, forward, sample and commit at 1 to 256 sequences.

    python -m benchmarks.host_step [--sequences 1 16 64 256] [--rules greedy all] [--steps 60]
    build/npu/torch_npu-2.13.0/venv/bin/python -m benchmarks.host_step --device npu [--graphs] [--layers 28]

On a CPU the tiny network and the sampler compute. On an NPU, in an environment of `make test-npu`, the real torch_npu
runs over a driver that does nothing, so that what is left is the host's own work. The engines step in turn, in one
thread, and figures are medians of processor time.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from model.engine.engine import Engine
from model.engine.messages import Generate, SamplingParams
from model.net.multimodal import MultimodalLM
from model.staging.graphs import DecodeGraphs
from model.staging.transfers import Results
from tests.model.engine.engine_harness import engine_at
from tests.npu.wheel.twins import load_on, open_npu
from tests.parity.harness import load_ours
from tests.tiny.qwen2_vl import write_qwen2_vl
from tokenization.messages import Prepared

# forward with its update, where it is a graph; sample with the copy before it and the wait behind it
PHASES = ("plan", "build", "forward", "sample", "commit")
PROMPT = 200  # tokens
BLOCK, LENGTH = 128, 512  # tokens of a block, of a sequence at most
VOCAB = 1024
GREEDY = SamplingParams(max_tokens=400, temperature=0.0, seed=0)
RULES = {
    "greedy": GREEDY,
    "all": msgspec.structs.replace(
        GREEDY, temperature=0.8, top_p=0.9, top_k=50, min_p=0.05, repetition_penalty=1.1, frequency_penalty=0.1,
        presence_penalty=0.1, logit_bias=((3, 1.0), (9, -2.0)), bad_words=((5, 6), (8,)), min_tokens=400,
        stop_token_ids=(7,), logprobs=True, top_logprobs=3,
    ),
}  # fmt: skip


class Clock:
    """Seconds of this thread in each phase of the running step: what else runs on the machine does not count."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            found = call(*args, **kwargs)
            self.now[name] = self.now.get(name, 0.0) + time.thread_time() - start
            return found

        return run

    def step(self, engine: Engine) -> dict[str, float]:
        self.now = {}
        start = time.thread_time()
        engine.step()
        self.now["step"] = time.thread_time() - start
        self.now["sample"] = self.now["run"] - self.now["forward"]
        return self.now


def engine_with(
    model: MultimodalLM, root: Path, n: int, sampling: SamplingParams, clock: Clock, graphs: bool
) -> Engine:
    """An engine whose `n` sequences are past their prompts."""
    engine = engine_at(
        model, root, block_size=BLOCK, seqs=n, tokens=max(2048, n), max_model_len=LENGTH, kv_tokens=(n + 1) * LENGTH,
        graphs=graphs,
    )  # fmt: skip
    engine.capture_graphs()
    for i in range(n):
        ids = np.random.default_rng(i).integers(20, VOCAB - 20, PROMPT)
        prepared = Prepared(
            request_id=str(i), input_ids=ids.astype(np.int64), media=(), position_delta=0, seconds={},
            positions=np.broadcast_to(np.arange(PROMPT, dtype=np.int32), (3, PROMPT)),
        )  # fmt: skip
        assert engine.submit(Generate(prepared=prepared, sampling=msgspec.structs.replace(sampling, seed=i))) is None
    scheduler, runner, batches = engine._scheduler, engine._runner, engine._batches
    scheduler.plan = clock.timed("plan", scheduler.plan)  # type: ignore[method-assign]
    scheduler.commit = clock.timed("commit", scheduler.commit)  # type: ignore[method-assign]
    batches.build = clock.timed("build", batches.build)  # type: ignore[method-assign]
    runner._forward = clock.timed("forward", runner._forward)  # type: ignore[method-assign]
    runner.run = clock.timed("run", runner.run)  # type: ignore[method-assign]
    while any(sequence.is_fresh for sequence in scheduler):
        engine.step()
    return engine


@contextmanager
def opened(device: str) -> Iterator[torch.device]:
    """On an NPU the kernels alone, without what computes their results: each token is 0."""
    if device == "cpu":
        yield torch.device("cpu")
        return
    from tests.npu import ring1  # which reads a variable that only an environment of `make test-npu` has

    npu = open_npu()
    for library in ring1._LIBRARIES.values():
        library._destroy()
    with pytest.MonkeyPatch.context() as patch:
        fetch = Results.fetch
        patch.setattr(Results, "fetch", lambda self, *given: [np.zeros_like(found) for found in fetch(self, *given)])
        yield npu


def measure(device: torch.device, args: argparse.Namespace) -> None:
    """One line for each number of sequences and set of rules."""
    clock, keys = Clock(), [(name, n) for name in args.rules for n in args.sequences]
    found: dict[tuple[str, int], list[dict[str, float]]] = {key: [] for key in keys}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = write_qwen2_vl(Path(folder) / "tiny", vocab=VOCAB, layers=args.layers, hidden=args.hidden)
        model = load_ours(path) if device.type == "cpu" else load_on(path, device, torch.bfloat16)
        patch.setattr(DecodeGraphs, "update", clock.timed("update", DecodeGraphs.update))
        engines = {key: engine_with(model, Path(folder), key[1], RULES[key[0]], clock, args.graphs) for key in keys}
        for _ in range(args.steps):
            for key, engine in engines.items():
                found[key].append(clock.step(engine))
    for (name, n), steps in found.items():
        taken = {phase: statistics.median(step[phase] for step in steps) * 1e6 for phase in PHASES}
        line = "  ".join(f"{phase} {value:5.0f}" for phase, value in taken.items())
        rest = statistics.median(step["step"] - step["forward"] for step in steps) * 1e6
        if args.graphs:
            line += f"  (its update {statistics.median(step['update'] for step in steps) * 1e6:5.0f})"
        print(f"{device.type} {name:6s} {n:3d} sequences: {line}   all but forward {rest:5.0f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "npu"], default="cpu")
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64, help="of the tiny network; 512 gives heads of 128")
    parser.add_argument("--graphs", action="store_true", help="replay captured graphs; on an NPU alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with opened(args.device) as device:
        measure(device, args)


if __name__ == "__main__":
    main()
