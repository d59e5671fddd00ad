"""Greedy tokens of a mixed batch against transformers' generate, however the batch is cut, staggered or preempted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.engine.messages import Generate
from tests.model.engine.engine_harness import EngineHarness, clip, engine_at, engine_harness_at, picture
from tests.parity.conftest import written
from tests.parity.engine_check import (
    MARGIN,
    N,
    Parts,
    Reference,
    Setup,
    as_reference,
    explicit,
    generated,
    n_media,
    never_sampled,
    pixels_of,
    prepared_one_by_one,
    submit_all,
)
from tests.parity.harness import load_hf, load_ours
from tests.samples.videos import make_clip

pytestmark = pytest.mark.network

WIDE = make_clip(40, rate=10, size=(56, 224), key_every=8)  # four seconds, higher or wider than its time is long
SMALL = make_clip(40, rate=10, size=(56, 56), key_every=8)
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
N_MEDIA = {name: n_media(parts) for name, parts in MEMBERS.items() if n_media(parts)}


@torch.inference_mode()
def reference_of(hf: Any, path: Path, generate: Generate, parts: Parts, root: Path, banned: list[int]) -> Reference:
    """transformers, alone with this one prompt; positions are its own, but for a video that outlasts its size."""
    ids = torch.from_numpy(generate.prepared.input_ids.copy())
    for item in generate.prepared.media:
        ids[item.spans[0][0] : item.spans[0][0] + 2] = getattr(hf.config, f"{item.kind}_token_id")
    media = pixels_of(path, generate, parts, root)
    kinds = (ids == hf.config.image_token_id).int() + 2 * (ids == hf.config.video_token_id).int()
    if hasattr(hf.config.vision_config, "tokens_per_second") and "video_grid_thw" in media:
        media["second_per_grid_ts"] = torch.tensor(
            [item.seconds_per_grid for item in generate.prepared.media if item.seconds_per_grid]
        )
    grids = {name: value for name, value in media.items() if not name.startswith("pixel")}
    theirs, _ = hf.model.get_rope_index(ids[None], kinds[None], **grids)
    if np.array_equal(theirs[:, 0].numpy(), generate.prepared.positions):
        tokens, logits = generated(hf, ids, {"mm_token_type_ids": kinds[None], **media}, banned)
    else:
        tokens, logits = explicit(hf, ids, generate, media, banned)
    return as_reference(len(ids), tokens, logits, banned)


@pytest.fixture(scope="module", params=[pytest.param("qwen2_vl", marks=pytest.mark.matrix), "qwen2_5_vl"])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """What `make test` shows of one, whose positions a video's rate moves, `make proofs` shows of the other.

    Their networks stand in test_qwen2_network.py, where the names of transformers 5 give equal bits, too.
    """
    path = written(request.param, tmp_path_factory.mktemp("tiny"))
    hf, ours = load_hf(path), load_ours(path)
    hf.generation_config.eos_token_id = None  # all N tokens, whatever they are
    banned = never_sampled(ours)
    with engine_harness_at(path, tmp_path_factory.mktemp("shm") / "root") as harness:
        prepared = prepared_one_by_one(harness, MEMBERS)
        references = {
            name: reference_of(hf, path, generate, MEMBERS[name], harness.root, banned) for name, generate in prepared
        }
    yield Setup(path, ours, MEMBERS, references)


@pytest.fixture
def harness(setup: Setup, tmp_path: Path) -> Iterator[EngineHarness]:
    with engine_harness_at(setup.path, tmp_path / "root") as found:
        yield found


def test_the_reference_is_sure_of_itself(setup: Setup) -> None:
    margins = torch.cat([reference.margins for reference in setup.references.values()])
    assert (margins > MARGIN).float().mean() >= 0.9
    assert all(len(set(reference.tokens)) > 2 for reference in setup.references.values())


@pytest.mark.parametrize(("tokens", "block_size"), [(7, 4), (2048, 16)])
def test_chunks(setup: Setup, harness: EngineHarness, tokens: int, block_size: int) -> None:
    submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens, block_size=block_size))
    assert {name: len(names) for name, names in harness.read.items()} == N_MEDIA


@pytest.mark.parametrize(("every", "tokens"), [(1, 7), (5, 64)])
def test_staggered(setup: Setup, harness: EngineHarness, every: int, tokens: int) -> None:
    submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens, seqs=3), every)


@pytest.mark.parametrize(("every", "spare"), [(0, 3), (1, 4)])
def test_preempted_while_decoding(setup: Setup, harness: EngineHarness, every: int, spare: int) -> None:
    blocks = sum(-(-n // 4) for n in setup.lengths.values()) + spare  # all prompts fit, their answers do not
    longest = max(setup.lengths.values()) + N
    engine = engine_at(
        setup.model,
        harness.root,
        tokens=2048,
        block_size=4,
        kv_tokens=4 * blocks,
        max_model_len=longest,
        seqs=len(MEMBERS),
        prefix_cache="off",
    )
    submit_all(setup, harness, engine, every)
    assert engine.stats.preemptions > 0
    assert len(harness.read["twenty"]) == 20  # nothing was read a second time


@pytest.mark.parametrize("tokens", [7, 16])
def test_preempted_inside_the_prompt(setup: Setup, harness: EngineHarness, tokens: int) -> None:
    blocks = -(-setup.lengths["twenty"] // 4) - (-setup.lengths["three"] // 4) + 1
    longest = setup.lengths["twenty"] + N
    engine = engine_at(
        setup.model, harness.root, tokens=tokens, block_size=4, kv_tokens=4 * blocks, max_model_len=longest,
        prefix_cache="off",
    )  # fmt: skip
    submit_all(setup, harness, engine, names=("twenty", "three", "one", "text"))
    assert engine.stats.preemptions > 0
    assert len(harness.read["three"]) == 3


def test_preempted_in_a_cache_for_one(setup: Setup, harness: EngineHarness) -> None:
    longest = max(setup.lengths.values()) + N
    engine = engine_at(setup.model, harness.root, tokens=32, block_size=4, kv_tokens=longest + 4, max_model_len=longest)
    submit_all(setup, harness, engine)


def test_one_at_a_time(setup: Setup, harness: EngineHarness) -> None:
    submit_all(setup, harness, engine_at(setup.model, harness.root, seqs=1))
