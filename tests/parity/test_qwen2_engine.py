"""Greedy tokens of a mixed batch against transformers' generate, however the batch is cut, staggered or preempted."""

from collections.abc import Iterator, Sequence
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
from shm.segment import read_segment
from shm.words import decode_shape_from_int64, decode_shm_name_from_int64
from tests.clips import make_clip
from tests.engine.host import Host, clip, engine_at, host_at, picture
from tests.parity.conftest import written
from tests.parity.harness import load_hf, load_ours
from tests.tiny import write_qwen2_vl
from tokenization.messages import Media

N = 16
MARGIN = 0.01
SAMPLING = SamplingParams(max_tokens=N, temperature=0.0, seed=0, logprobs=True, top_logprobs=3)

WIDE = make_clip(40, rate=10, size=(56, 224), key_every=8)  # four seconds, higher or wider than its time is long
SMALL = make_clip(40, rate=10, size=(56, 56), key_every=8)
Parts = Sequence[str | Image.Image | Media]
MEMBERS: dict[str, Parts] = {
    "text": ["Hello, world! What is a quick brown fox?"],
    "one": [picture(150, 90, 1), "what is in this image?"],
    "three": ["red", picture(60, 170, 2), "green", picture(90, 60, 3), picture(200, 120, 4), "describe the pictures"],
    "twenty": [part for i in range(20) for part in (f"{i + 1}", picture(40 + i, 75 - i, 10 + i))] + ["one two three"],
    "slow": ["the ", clip(WIDE, fps=1, min_pixels=3136), "what is in it?"],
    "fast": ["the ", clip(WIDE, fps=4, min_pixels=3136), "what is in it?"],
    "image_then_video": [picture(90, 60, 5), "and", clip(WIDE, fps=2, min_pixels=3136), "answers"],
    "video_then_image": [clip(WIDE, fps=2, min_pixels=3136), "and", picture(90, 60, 5), "answers"],
    "long": ["the ", clip(SMALL, fps=4, min_pixels=3136), "what is in it?"],  # its time outruns its height and width
}
N_MEDIA = {
    name: sum(not isinstance(part, str) for part in parts)
    for name, parts in MEMBERS.items()
    if any(not isinstance(part, str) for part in parts)
}


@dataclass(frozen=True)
class Reference:
    tokens: list[int]
    logits: torch.Tensor  # float32 [N, vocab], raw
    margins: torch.Tensor  # [N]: by how much the best of the ids that may be sampled leads


@dataclass(frozen=True)
class Setup:
    path: Path
    model: MultimodalLM
    references: dict[str, Reference]
    lengths: dict[str, int]


def media_of(path: Path, generate: Generate, parts: Parts, root: Path) -> dict[str, torch.Tensor]:
    """Pictures as transformers' own processor makes them; videos as they lie in shared memory, normalised here."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    found: dict[str, torch.Tensor] = {}
    images = [part for part in parts if isinstance(part, Image.Image)]
    processor = Qwen2VLImageProcessorPil.from_pretrained(path)
    if images:
        out = processor(images, return_tensors="pt")
        found |= {"pixel_values": out["pixel_values"], "image_grid_thw": out["image_grid_thw"]}
    videos = [item for item in generate.media if item.kind == "video"]
    if videos:
        mean, std = (torch.tensor(values)[None, :, None] for values in (processor.image_mean, processor.image_std))
        patches = torch.cat([torch.from_numpy(pixels_of(generate, item.spans[0][0], root)) for item in videos])
        normal = (patches.view(len(patches), 3, -1).float() / 255 - mean) / std
        found |= {"pixel_values_videos": normal.flatten(1), "video_grid_thw": torch.tensor([v.grid for v in videos])}
    return found


def pixels_of(generate: Generate, start: int, root: Path) -> np.ndarray:
    """The array that the words at `start` lead to."""
    name, shape = generate.input_ids[start : start + 2].tolist()
    return read_segment(root, decode_shm_name_from_int64(name), decode_shape_from_int64(shape), np.uint8)


@torch.inference_mode()
def reference_of(hf: Any, path: Path, generate: Generate, parts: Parts, root: Path, banned: list[int]) -> Reference:
    """transformers, alone with this one prompt; positions are its own, but for a video that outlasts its size."""
    ids = torch.from_numpy(generate.input_ids.copy())
    for item in generate.media:
        ids[item.spans[0][0] : item.spans[0][0] + 2] = getattr(hf.config, f"{item.kind}_token_id")
    media = media_of(path, generate, parts, root)
    kinds = (ids == hf.config.image_token_id).int() + 2 * (ids == hf.config.video_token_id).int()
    if hasattr(hf.config.vision_config, "tokens_per_second") and "video_grid_thw" in media:
        media["second_per_grid_ts"] = torch.tensor(
            [item.seconds_per_grid for item in generate.media if item.seconds_per_grid]
        )
    grids = {name: value for name, value in media.items() if not name.startswith("pixel")}
    theirs, _ = hf.model.get_rope_index(ids[None], kinds[None], **grids)
    if np.array_equal(theirs[:, 0].numpy(), generate.positions):
        out = hf.generate(
            input_ids=ids[None], attention_mask=torch.ones_like(ids[None]), mm_token_type_ids=kinds[None], **media,
            max_new_tokens=N, do_sample=False, suppress_tokens=banned, return_dict_in_generate=True,
            output_logits=True,
        )  # fmt: skip
        tokens, logits = out.sequences[0, -N:].tolist(), torch.cat(out.logits).float()
    else:
        tokens, logits = explicit(hf, ids, generate, media, banned)
    allowed = logits.index_fill(1, torch.tensor(banned), -torch.inf).topk(2).values
    return Reference(tokens, logits, allowed[:, 0] - allowed[:, 1])


def explicit(
    hf: Any, ids: torch.Tensor, generate: Generate, media: dict[str, torch.Tensor], banned: list[int]
) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens and logits by whole forward passes under explicit positions: the prompt's, then one by one."""
    first = generate.input_ids.shape[0]
    assert generate.positions[:, -1].max() + 1 == first + generate.position_delta
    rows = []
    for i in range(first, first + N):
        generated = torch.arange(first, i) + generate.position_delta
        positions = torch.cat([torch.from_numpy(generate.positions).long(), generated.expand(3, -1)], dim=1)
        out = hf(input_ids=ids[None], position_ids=positions[:, None], use_cache=False, **media)
        rows.append(out.logits[0, -1].float())
        best = rows[-1].index_fill(0, torch.tensor(banned), -torch.inf).argmax()
        ids = torch.cat([ids, best[None]])
    return ids[first:].tolist(), torch.stack(rows)


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_vl-v5", "qwen2_5_vl"])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    directory = tmp_path_factory.mktemp("tiny")
    if request.param == "qwen2_vl-v5":
        path = write_qwen2_vl(directory, layout="v5")
    else:
        path = written(request.param, directory)
    hf, ours = load_hf(path), load_ours(path)
    hf.generation_config.eos_token_id = None  # all N tokens, whatever they are
    banned = sorted({*ours.pad_ids.values(), *ours.placeholder_ids})
    references, lengths = {}, {}
    with host_at(path, tmp_path_factory.mktemp("shm") / "root") as host:
        for name, parts in MEMBERS.items():
            generate = host.prepare(name, parts)
            lengths[name] = len(generate.input_ids)
            references[name] = reference_of(hf, path, generate, parts, host.root, banned)
            host.pool.retire(name)
            host.pool.settle(name)
    yield Setup(path, ours, references, lengths)


@pytest.fixture
def host(setup: Setup, tmp_path: Path) -> Iterator[Host]:
    with host_at(setup.path, tmp_path / "root") as found:
        yield found


def check(setup: Setup, host: Host, engine: Engine, names: Sequence[str]) -> None:
    """Tokens equal and log-probabilities close for every member, for as long as the reference is sure of itself."""
    host.assert_clean(engine)
    for name in names:
        reference, events = setup.references[name], host.events[name]
        assert [event.finish for event in events] == [None] * (N - 1) + ["length"], name
        assert host.finished[name].reason == "done"
        logprobs = reference.logits.log_softmax(-1)
        for i, event in enumerate(events):
            if reference.margins[i] <= MARGIN and event.token.id != reference.tokens[i]:
                break  # either of the two was right; from here on the histories differ
            assert event.token.id == reference.tokens[i], f"{name}: token {i}"
            assert event.token.logprob == pytest.approx(logprobs[i, event.token.id].item(), abs=1e-3)
            assert len(event.token.top) == 3
            for token, value in event.token.top:
                assert value == pytest.approx(logprobs[i, token].item(), abs=1e-3)


def submit_all(setup: Setup, host: Host, engine: Engine, every: int = 0, names: Sequence[str] = tuple(MEMBERS)) -> None:
    """All members, text first; with `every` > 0 that many steps lie between two arrivals."""
    for name in names:
        host.submit(engine, host.prepare(name, MEMBERS[name], SAMPLING))
        for _ in range(every):
            host.book(engine.step())
    host.run(engine)
    check(setup, host, engine, names)


def test_the_reference_is_sure_of_itself(setup: Setup) -> None:
    margins = torch.cat([reference.margins for reference in setup.references.values()])
    assert (margins > MARGIN).float().mean() >= 0.9
    assert all(len(set(reference.tokens)) > 2 for reference in setup.references.values())


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("tokens", [7, 64, 2048])
def test_chunks(setup: Setup, host: Host, tokens: int, block_size: int) -> None:
    submit_all(setup, host, engine_at(setup.model, host.root, tokens=tokens, block_size=block_size))
    assert {name: len(names) for name, names in host.read.items()} == N_MEDIA


@pytest.mark.parametrize("tokens", [7, 64])
@pytest.mark.parametrize("every", [1, 5])
def test_staggered(setup: Setup, host: Host, every: int, tokens: int) -> None:
    submit_all(setup, host, engine_at(setup.model, host.root, tokens=tokens, seqs=3), every)


@pytest.mark.parametrize(("every", "spare"), [(0, 3), (1, 4)])
def test_preempted_while_decoding(setup: Setup, host: Host, every: int, spare: int) -> None:
    blocks = sum(-(-n // 4) for n in setup.lengths.values()) + spare  # all prompts fit, their answers do not
    longest = max(setup.lengths.values()) + N
    engine = engine_at(
        setup.model,
        host.root,
        tokens=2048,
        block_size=4,
        kv_tokens=4 * blocks,
        max_model_len=longest,
        seqs=len(MEMBERS),
    )
    submit_all(setup, host, engine, every)
    assert engine.stats.preemptions > 0
    assert len(host.read["twenty"]) == 20  # nothing was read a second time


@pytest.mark.parametrize("tokens", [7, 16])
def test_preempted_inside_the_prompt(setup: Setup, host: Host, tokens: int) -> None:
    blocks = -(-setup.lengths["twenty"] // 4) - (-setup.lengths["three"] // 4) + 1
    longest = setup.lengths["twenty"] + N
    engine = engine_at(setup.model, host.root, tokens=tokens, block_size=4, kv_tokens=4 * blocks, max_model_len=longest)
    submit_all(setup, host, engine, names=("twenty", "three", "one", "text"))
    assert engine.stats.preemptions > 0
    assert len(host.read["three"]) == 3


def test_preempted_in_a_cache_for_one(setup: Setup, host: Host) -> None:
    longest = max(setup.lengths.values()) + N
    engine = engine_at(setup.model, host.root, tokens=32, block_size=4, kv_tokens=longest + 4, max_model_len=longest)
    submit_all(setup, host, engine)


def test_one_at_a_time(setup: Setup, host: Host) -> None:
    submit_all(setup, host, engine_at(setup.model, host.root, seqs=1))
