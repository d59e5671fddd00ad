"""Qwen3-VL against transformers, from the same files: ids, positions, logits in chunks, tokens of mixed batches."""

from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from configs.serve import MediaConfig
from model.engine.messages import Generate
from model.net import rope_vit
from tests.model.engine.engine_harness import EngineHarness, clip, data_url, engine_at, engine_harness_at, picture
from tests.parity.engine_check import (
    Parts,
    Reference,
    Setup,
    as_reference,
    generated,
    never_sampled,
    pixels_of,
    prepared_one_by_one,
    submit_all,
)
from tests.parity.harness import Film, Grid, Layouts, hf_pixels, load_hf, load_ours, make_sample
from tests.parity.pictures import compare_logits, sample_of
from tests.parity.qwen3_reference import their_ids, their_processor
from tests.parity.rounding import assert_no_further, assert_tower, check_bfloat16
from tests.published.layouts import host_of
from tests.samples.videos import make_clip
from tests.tables import entries
from tests.tiny.qwen3_vl import write_qwen3_vl
from tokenization.chat.parts import Media
from tokenization.media.source import Source

pytestmark = pytest.mark.network

QUESTION = "what is in this image?"
WIDE = make_clip(40, rate=10, size=(64, 224), key_every=8)  # four seconds
SMALL = make_clip(25, rate=10, size=(64, 64), key_every=8)  # 2.5 s: five frames, of which the last is shown twice
MEMBERS: dict[str, Parts] = {
    "text": ["Hello, world! What is a quick brown fox?"],
    "wide": [picture(150, 90, 1), QUESTION],
    "three": ["red", picture(60, 170, 2), "green", picture(90, 60, 3), picture(200, 120, 4), "describe the pictures"],
    "film": ["look: ", clip(WIDE), "what is in it?"],
    "both": [picture(90, 60, 5), "and", clip(SMALL), "answers"],
}


def messages_of(parts: Parts) -> list[dict[str, Any]]:
    content = [
        {"type": "text", "text": part} if isinstance(part, str)
        else {"type": "image" if isinstance(part, Image.Image) else "video"}
        for part in parts
    ]  # fmt: skip
    return [{"role": "user", "content": content}]


@torch.inference_mode()
def setup_of(path: Path, root: Path, members: Mapping[str, Parts]) -> Setup:
    """Ids, positions and logits are compared here; what transformers generates is the reference of mixed batches."""
    hf, ours, theirs, host = load_hf(path), load_ours(path), their_processor(path), host_of(path)
    hf.generation_config.eos_token_id = None  # all N tokens, whatever they are
    banned = never_sampled(ours)
    references: dict[str, Reference] = {}
    with engine_harness_at(path, root) as harness:
        for name, generate in prepared_one_by_one(harness, members):
            sample = sample_of(path, generate, harness.root)
            measures = [
                host.measure(source_of(part), MediaConfig()) for part in members[name] if not isinstance(part, str)
            ]
            assert sample.ids.tolist() == their_ids(theirs, messages_of(members[name]), measures, outer=False), name
            media = media_of(hf, path, generate, members[name], sample.ids, harness.root)
            compare_logits(ours, hf, sample, media, name)
            hf.model.rope_deltas = None
            references[name] = as_reference(len(sample.ids), *generated(hf, sample.ids, media, banned), banned)
    assert len({tuple(reference.tokens) for reference in references.values()}) == len(members), "each tells its own"
    return Setup(path, ours, members, references)


def media_of(
    hf: Any, path: Path, generate: Generate, parts: Parts, ids: torch.Tensor, root: Path
) -> dict[str, torch.Tensor]:
    """What the network takes besides ids; the positions that it makes of it are compared with ours."""
    found = pixels_of(path, generate, parts, root)
    if found:
        kinds = (ids == hf.config.image_token_id).int() + 2 * (ids == hf.config.video_token_id).int()
        grids = {name: value for name, value in found.items() if not name.startswith("pixel")}
        theirs, delta = hf.model.get_rope_index(ids[None], kinds[None], **grids)
        assert np.array_equal(theirs[:, 0].numpy(), generate.prepared.positions)
        assert int(delta) == generate.prepared.position_delta
        found["mm_token_type_ids"] = kinds[None]
    return found


def source_of(part: Any) -> Source:
    url = part.source if isinstance(part, Media) else data_url(part)
    data = b64decode(str(url).partition(",")[2])
    return Source(kind="video" if isinstance(part, Media) else "image", param="", data=data)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    path = write_qwen3_vl(tmp_path_factory.mktemp("tiny"), tied=False)
    return setup_of(path, tmp_path_factory.mktemp("shm") / "root", MEMBERS)


@pytest.fixture
def harness(setup: Setup, tmp_path: Path) -> Iterator[EngineHarness]:
    with engine_harness_at(setup.path, tmp_path / "root") as found:
        yield found


SLOW = pytest.mark.families


@pytest.mark.parametrize(("tokens", "every"), [pytest.param(3, 0, marks=SLOW), (7, 3), (2048, 0)])
def test_mixed_batches(setup: Setup, harness: EngineHarness, tokens: int, every: int) -> None:
    submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens), every)


# ---- the tower alone

GRIDS: list[Grid] = [(1, 2, 2), (1, 2, 14), (1, 6, 8), (1, 12, 12), (1, 34, 26)]  # of 6 x 6 learned positions
FILMS: list[Grid] = [(2, 4, 6), (5, 10, 18)]
CASES = [("image", grid) for grid in GRIDS] + [("video", grid) for grid in FILMS]


@pytest.fixture(scope="module")
def networks(setup: Setup) -> dict[torch.dtype, Any]:
    return {dtype: load_hf(setup.path, dtype) for dtype in (torch.float32, torch.float64)}


def theirs_of(setup: Setup, hf: Any, kind: str, grid: Grid, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Our input, and their embeddings with what the tapped blocks gave behind them."""
    sample = make_sample(setup.path, [grid if kind == "image" else Film(grid=grid)])
    with torch.inference_mode():
        out = hf.model.visual(hf_pixels(sample, setup.path, kind).to(dtype), grid_thw=torch.tensor([grid]))
    return sample.pixels[0], torch.cat([out.pooler_output, *out.deepstack_features], dim=1)


def test_vision_tower(setup: Setup, networks: dict[torch.dtype, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with entries() as entry:
        for kind, grid in CASES:
            pixels, expected = theirs_of(setup, networks[torch.float32], kind, grid, torch.float32)
            with entry((kind, grid)), monkeypatch.context() as patched:
                assert_tower(setup.model.encode(kind, [pixels], [grid])[0], expected)
                patched.setattr(rope_vit, "MAX_ROWS", 2 * grid[1] * grid[2])  # two temporal grids at a time
                assert_tower(setup.model.encode(kind, [pixels], [grid])[0], expected)


def test_vision_rounds_no_worse(setup: Setup, networks: dict[torch.dtype, Any]) -> None:
    def outputs() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        for kind, grid in CASES:
            pixels, theirs = theirs_of(setup, networks[torch.float32], kind, grid, torch.float32)
            _, exact = theirs_of(setup, networks[torch.float64], kind, grid, torch.float64)
            yield setup.model.encode(kind, [pixels], [grid])[0], theirs, exact

    assert_no_further(outputs())


@pytest.mark.families
@torch.inference_mode()
def test_bfloat16_rounds_no_worse(setup: Setup, networks: dict[torch.dtype, Any]) -> None:
    layouts: list[Layouts] = [[3, (1, 6, 8), 19], [2, Film(grid=(2, 4, 6)), 14, (1, 4, 4), 5], [40]]
    check_bfloat16(setup.path, networks[torch.float32], layouts)
