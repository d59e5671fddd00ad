"""What engine parity tests share: one prompt's reference by transformers, and the comparison of what an engine said."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from model.engine.engine import Engine
from model.engine.messages import Generate, SamplingParams
from model.net.multimodal import MultimodalLM
from shm import decode_shape_from_int64, decode_shm_name_from_int64, read_segment
from tests.model.engine.engine_harness import EngineHarness
from tokenization.chat.parts import Media

N = 16
MARGIN = 0.01
SAMPLING = SamplingParams(max_tokens=N, temperature=0.0, seed=0, logprobs=True, top_logprobs=3)

Parts = Sequence[str | Image.Image | Media]


@dataclass(frozen=True)
class Reference:
    n_prompt: int
    tokens: list[int]
    logits: torch.Tensor  # float32 [N, vocab], raw
    margins: torch.Tensor  # [N]: by how much the best of the ids that may be sampled leads


@dataclass(frozen=True)
class Setup:
    path: Path
    model: MultimodalLM
    members: Mapping[str, Parts]
    references: dict[str, Reference]

    @property
    def lengths(self) -> dict[str, int]:
        """Tokens of each prompt."""
        return {name: found.n_prompt for name, found in self.references.items()}


def never_sampled(model: MultimodalLM) -> list[int]:
    """Ids that mark media."""
    return sorted({*model.placeholder_ids.values(), *model.media_token_ids})


def n_media(parts: Parts) -> int:
    """Media of one prompt; the sound of a video is one of its own."""
    media = [part for part in parts if not isinstance(part, str)]
    return sum(1 + (isinstance(part, Media) and bool(part.options.use_audio)) for part in media)


def array_of(generate: Generate, start: int, root: Path, dtype: Any = np.uint8) -> np.ndarray:
    """The array that the words at `start` lead to."""
    name, shape = generate.prepared.input_ids[start : start + 2].tolist()
    return read_segment(root, decode_shm_name_from_int64(name), decode_shape_from_int64(shape), dtype)


def pixels_of(path: Path, generate: Generate, parts: Parts, root: Path) -> dict[str, torch.Tensor]:
    """Pictures as transformers' own processor makes them; videos as they lie in shared memory, normalised here."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    found: dict[str, torch.Tensor] = {}
    images = [part for part in parts if isinstance(part, Image.Image)]
    processor = Qwen2VLImageProcessorPil.from_pretrained(path)
    if images:
        out = processor(images, return_tensors="pt")
        found |= {"pixel_values": out["pixel_values"], "image_grid_thw": out["image_grid_thw"]}
    videos = [item for item in generate.prepared.media if item.kind == "video"]
    if videos:
        mean, std = (torch.tensor(values)[None, :, None] for values in (processor.image_mean, processor.image_std))
        patches = torch.cat([torch.from_numpy(array_of(generate, item.spans[0][0], root)) for item in videos])
        normal = (patches.view(len(patches), 3, -1).float() / 255 - mean) / std
        found |= {"pixel_values_videos": normal.flatten(1), "video_grid_thw": torch.tensor([v.grid for v in videos])}
    return found


def prepared_one_by_one(harness: EngineHarness, members: Mapping[str, Parts]) -> Iterator[tuple[str, Generate]]:
    """Every member with its media in shared memory, until the next one is asked for."""
    for name, parts in members.items():
        yield name, harness.prepare(name, parts)
        harness.pool.retire(name)
        harness.pool.settle(name)


def explicit(
    hf: Any, ids: torch.Tensor, generate: Generate, media: Mapping[str, torch.Tensor], banned: list[int]
) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens and logits by whole forward passes under explicit positions: the prompt's, then one by one."""
    first = generate.prepared.input_ids.shape[0]
    assert generate.prepared.positions[:, -1].max() + 1 == first + generate.prepared.position_delta
    rows = []
    for i in range(first, first + N):
        generated = torch.arange(first, i) + generate.prepared.position_delta
        positions = torch.cat([torch.from_numpy(generate.prepared.positions).long(), generated.expand(3, -1)], dim=1)
        out = hf(input_ids=ids[None], position_ids=positions[:, None], use_cache=False, **media)
        rows.append(out.logits[0, -1].float())
        best = rows[-1].index_fill(0, torch.tensor(banned), -torch.inf).argmax()
        ids = torch.cat([ids, best[None]])
    return ids[first:].tolist(), torch.stack(rows)


def generated(
    hf: Any, ids: torch.Tensor, media: Mapping[str, Any], banned: list[int]
) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens and logits by transformers' own loop, with its own positions and cache."""
    out = hf.generate(
        input_ids=ids[None], attention_mask=torch.ones_like(ids[None]), **media, max_new_tokens=N, do_sample=False,
        suppress_tokens=banned, return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    return out.sequences[0, -N:].tolist(), torch.cat(out.logits).float()


def as_reference(n_prompt: int, tokens: list[int], logits: torch.Tensor, banned: list[int]) -> Reference:
    """With the lead of the best id that may be sampled."""
    allowed = logits.index_fill(1, torch.tensor(banned), -torch.inf).topk(2).values
    return Reference(n_prompt, tokens, logits, allowed[:, 0] - allowed[:, 1])


def check(setup: Setup, harness: EngineHarness, engine: Engine, names: Sequence[str], n: int = 1) -> None:
    """Tokens equal and log-probabilities close for every member, for as long as the reference is sure of itself."""
    harness.assert_clean(engine)
    for name in names:
        assert harness.finished[name].reason == "done"
        for index in range(n):
            _check_answer(setup, harness, name, index)


def _check_answer(setup: Setup, harness: EngineHarness, name: str, index: int) -> None:
    reference = setup.references[name]
    events = [event for event in harness.events[name] if event.index == index]
    assert [event.finish for event in events] == [None] * (N - 1) + ["length"], name
    logprobs = reference.logits.log_softmax(-1)
    for i, event in enumerate(events):
        if reference.margins[i] <= MARGIN and event.token.id != reference.tokens[i]:
            break  # either of the two was right; from here on the histories differ
        assert event.token.id == reference.tokens[i], f"{name}: token {i}"
        assert event.token.logprob == pytest.approx(logprobs[i, event.token.id].item(), abs=1e-3)
        assert len(event.token.top) == 3
        for token, value in event.token.top:
            assert value == pytest.approx(logprobs[i, token].item(), abs=1e-3)


def submit_all(
    setup: Setup, harness: EngineHarness, engine: Engine, every: int = 0, names: Sequence[str] | None = None,
    sampling: SamplingParams = SAMPLING,
) -> None:  # fmt: skip
    """All members in their order; with `every` > 0 that many steps lie between two arrivals."""
    chosen = tuple(setup.members) if names is None else names
    for name in chosen:
        harness.submit(engine, harness.prepare(name, setup.members[name], sampling))
        for _ in range(every):
            harness.book(engine.step())
    harness.run(engine)
    check(setup, harness, engine, chosen, sampling.n)
