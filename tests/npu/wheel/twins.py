"""The same requests through an engine on the stub's NPU and through one on ring 0, and all that both said."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from configs.checkpoint import Checkpoint
from model.device import resolve
from model.engine import runner
from model.engine.batch import BatchBuilder
from model.engine.messages import SamplingParams, TokenEvent
from model.engine.sampling.sampler import sample
from model.net.multimodal import MultimodalLM
from model.ops.npu import NpuOps
from model.registry import family_of
from model.weights import Weights
from tests.model.engine.engine_harness import Parts, engine_at, engine_harness_at
from tokenization.chat.grammar import CompiledGrammar

BLOCK = 128  # tokens: what an NPU takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    parts: Parts
    sampling: SamplingParams
    grammar: CompiledGrammar | None = None


@dataclass(slots=True, kw_only=True)
class Said:
    """By one engine."""

    events: dict[str, list[TokenEvent]]  # by request: ids, log-probabilities
    logits: list[Tensor]  # float32 [draws, vocab] of each step
    cut_media: int  # chunks that ended inside a medium
    mixed: int  # steps with decodes beside chunks of a prompt
    preemptions: int
    cached: int = 0  # tokens that prompts took over


def open_npu() -> torch.device:
    """As the engine does it."""
    return resolve("npu", "bfloat16")[0]


def load_on(path: Path, device: torch.device, dtype: torch.dtype) -> MultimodalLM:
    """The checkpoint over NpuOps: on an NPU, or on the CPU for ring 0."""
    checkpoint = Checkpoint(path)
    family = family_of(checkpoint)
    weights = Weights(checkpoint, family.renames, dtype, device, family.skips)
    return family.build(checkpoint, weights, NpuOps(device, dtype, checks=True))


def run_on(
    model: MultimodalLM, path: Path, root: Path, requests: Mapping[str, Request], *, graphs: bool = False,
    aborts: Mapping[str, int] | None = None, starts: Mapping[str, int] | None = None, **limits: Any,
) -> Said:  # fmt: skip
    """Submit all, one a step or before the step that `starts` names, and run to the end.

    graphs: decode steps are captured and replayed. aborts: requests that are taken back before a step.
    """
    said = Said(events={}, logits=[], cut_media=0, mixed=0, preemptions=0)
    aborts, starts = aborts or {}, starts or {}
    with engine_harness_at(path, root) as harness, pytest.MonkeyPatch.context() as patch:
        record(said, patch)
        engine = engine_at(model, root, block_size=BLOCK, graphs=graphs, checkpoint=path, **limits)
        engine.capture_graphs()
        due = {name: starts.get(name, step) for step, name in enumerate(requests)}
        for step in range(1 + max([*due.values(), *aborts.values()])):
            for name in (name for name, at in due.items() if at == step):
                request = harness.prepare(name, requests[name].parts, requests[name].sampling)
                harness.submit(engine, msgspec.structs.replace(request, grammar=requests[name].grammar))
            harness.book([end for name, at in aborts.items() if at == step for end in [engine.abort(name)] if end])
            harness.book(engine.step())
        harness.run(engine)
        harness.assert_clean(engine)
        reasons = {name: answer.reason for name, answer in harness.finished.items()}
        assert reasons == {name: "abort" if name in aborts else "done" for name in requests}, harness.finished
        said.events, said.preemptions = harness.events, engine.stats.preemptions
        said.cached = engine.stats.prefix_hits
    return said


def record(said: Said, patch: pytest.MonkeyPatch) -> None:
    real = BatchBuilder.build

    def recorded(logits: Tensor, *rest: Any, **options: Any) -> Any:
        said.logits.append(logits.clone())  # read at the end: in the middle of a step nobody may wait
        return sample(logits, *rest, **options)

    def build(self: BatchBuilder, plan: Any, sequences: Any) -> Any:
        spans = [
            (chunk.stop, start, start + length)
            for chunk in plan.chunks
            for media in sequences[chunk.key].media
            for start, length in media.spans
        ]
        said.cut_media += sum(start < stop < end for stop, start, end in spans)
        said.mixed += len({chunk.stop - chunk.start > 1 for chunk in plan.chunks}) == 2
        return real(self, plan, sequences)

    patch.setattr(runner, "sample", recorded)
    patch.setattr(BatchBuilder, "build", build)


def assert_twins(npu: Said, ring0: Said) -> None:
    """Bit for bit."""
    assert npu.events == ring0.events
    assert len(npu.logits) == len(ring0.logits)
    for step, both in enumerate(zip(npu.logits, ring0.logits, strict=True)):
        mine, theirs = (logits.cpu() for logits in both)
        assert torch.equal(mine, theirs), f"step {step}: logits differ by {(mine - theirs).abs().max()}"
