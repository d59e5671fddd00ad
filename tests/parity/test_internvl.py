"""InternVL3 against transformers, from the same weights: ids, logits in chunks, tokens of mixed batches, the tower."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import torch

from configs.serve import MediaConfig
from model.families.internvl.processor import template_with
from model.families.internvl.sizes import SYSTEM
from model.net import absolute_vit
from tests.model.engine.engine_harness import EngineHarness, clip, engine_at, engine_harness_at, picture
from tests.model.engine.prefix_harness import asked
from tests.parity.engine_check import (
    SAMPLING,
    N,
    Parts,
    Reference,
    Setup,
    as_reference,
    check,
    generated,
    n_media,
    never_sampled,
    prepared_one_by_one,
    submit_all,
)
from tests.parity.harness import Layouts, load_hf, load_ours
from tests.parity.internvl_reference import (
    TheirProcessor,
    as_patches,
    decoded,
    messages_of,
    normalised,
    tiled_logits,
    tiled_sample,
)
from tests.parity.pictures import compare_logits, sample_of
from tests.parity.rounding import check_bfloat16
from tests.published.edits import edit_tensors
from tests.published.layouts import host_of
from tests.samples.videos import make_clip
from tests.tiny.internvl import LARGE, TILE, write_internvl, write_published_internvl
from tokenization.chat.parts import Media
from tokenization.media.source import Source

pytestmark = pytest.mark.network

SLOW = pytest.mark.families
QUESTION = "what is in this image?"
FILM = make_clip(40, rate=10, size=(64, 224), key_every=8)
SHORT = make_clip(5, rate=10, size=(90, 60), key_every=4)  # fewer frames than are looked at
PICTURES: dict[str, Parts] = {
    "text": ["Hello, world! What is a quick brown fox?"],
    "wide": [picture(150, 90, 1), QUESTION],
    "small": [picture(40, 41, 2), "red, green or blue?"],
    "three": [picture(60, 170, 2), "red", picture(90, 60, 3), picture(200, 120, 4), QUESTION],
}
MEMBERS: dict[str, Parts] = {
    **PICTURES,
    "film": ["look: ", clip(FILM), "what is in it?"],
    "both": [picture(90, 60, 5), "and", clip(SHORT), clip(FILM, fps=0.75), "answers"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A directory, and one in transformers' layout with the same weights and the same prompts."""

    path: Path
    twin: Path
    template: str | None = None  # of the twin, instead of its own


def case_of(root: Path, *, published: bool, large: bool) -> Case:
    twin = write_internvl(root / "twin", vision=LARGE if large else None)
    if not published:
        return Case(path=twin, twin=twin)
    template = template_with(SYSTEM).replace("<img>", "<video>")
    return Case(path=write_published_internvl(root / "published", twin), twin=twin, template=template)


CASES = {
    "transformers": {"published": False, "large": False},
    "published": {"published": True, "large": False},
    "transformers-6B": {"published": False, "large": True},
    "published-6B": {"published": True, "large": True},
}


@torch.inference_mode()
def setup_of(case: Case, root: Path, members: Mapping[str, Parts]) -> Setup:
    """Ids, positions and logits are compared here; what transformers generates is the reference of mixed batches."""
    hf, ours, theirs = load_hf(case.twin), load_ours(case.path), TheirProcessor(case.twin, case.template)
    hf.generation_config.eos_token_id = None
    banned = never_sampled(ours)
    references: dict[str, Reference] = {}
    with engine_harness_at(case.path, root) as harness:
        for name, generate in prepared_one_by_one(harness, members):
            sample = sample_of(case.path, generate, harness.root)
            ids, pixels = theirs.inputs(messages_of(members[name]), opened(case.path, members[name]))
            assert sample.ids.tolist() == ids.tolist(), name
            assert np.array_equal(sample.positions[0], np.arange(len(ids))), name
            media = {"pixel_values": pixels} if len(pixels) else {}
            compare_logits(ours, hf, sample, media, name)
            references[name] = as_reference(len(ids), *generated(hf, ids, media, banned), banned)
    assert len({tuple(reference.tokens) for reference in references.values()}) == len(members), "each tells its own"
    return Setup(case.path, ours, members, references)


def opened(path: Path, parts: Parts) -> list[Any]:
    """Pictures, and of clips the frames that our host half chooses."""
    host = host_of(path)
    found: list[Any] = []
    for part in parts:
        if isinstance(part, Media):
            content = FILM if part.source == clip(FILM).source else SHORT
            measure = host.measure(Source(kind="video", param="", data=content, options=part.options), MediaConfig())
            assert measure.video is not None
            found.append(decoded(content, measure.video.indices))
        elif not isinstance(part, str):
            found.append(part)
    return found


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    made: dict[str, Case] = {}

    def of(name: str) -> Case:
        if name not in made:
            made[name] = case_of(tmp_path_factory.mktemp(name), **CASES[name])
        return made[name]

    return of


@pytest.fixture(scope="module")
def setups(cases: Callable[[str], Case], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Setup]:
    made: dict[tuple[str, int], Setup] = {}

    def of(name: str, members: Mapping[str, Parts] = MEMBERS) -> Setup:
        key = name, len(members)
        if key not in made:
            made[key] = setup_of(cases(name), tmp_path_factory.mktemp("shm") / "root", members)
        return made[key]

    return of


@pytest.fixture
def setup(setups: Callable[..., Setup]) -> Setup:
    """Of pictures and videos."""
    return setups("transformers")


@pytest.fixture
def harness(cases: Callable[[str], Case], tmp_path: Path) -> Iterator[EngineHarness]:
    with engine_harness_at(cases("transformers").path, tmp_path / "root") as found:
        yield found


@pytest.mark.parametrize(("name", "tokens", "every"), [("transformers", 7, 3), ("published", 2048, 0)])
def test_pictures_in_mixed_batches(
    setups: Callable[..., Setup], name: str, tokens: int, every: int, tmp_path: Path
) -> None:
    setup = setups(name, PICTURES)
    with engine_harness_at(setup.path, tmp_path / "root") as harness:
        submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens), every)


@SLOW
@pytest.mark.parametrize(
    ("name", "tokens", "every"),
    [("transformers", 3, 0), ("transformers", 7, 3), ("transformers", 2048, 0), ("published", 7, 0),
     ("published", 2048, 3), ("transformers-6B", 16, 3), ("published-6B", 64, 0)],
)  # fmt: skip
def test_mixed_batches(setups: Callable[..., Setup], name: str, tokens: int, every: int, tmp_path: Path) -> None:
    setup = setups(name)
    with engine_harness_at(setup.path, tmp_path / "root") as harness:
        submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens), every)


@SLOW
def test_several_answers(setup: Setup, harness: EngineHarness) -> None:
    sampling = msgspec.structs.replace(SAMPLING, n=3)
    submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=16), sampling=sampling)


# ---- what is kept, and what makes room


@SLOW
@pytest.mark.parametrize("prefix_cache", ["off", "on"])
def test_asked_again(setup: Setup, harness: EngineHarness, prefix_cache: Literal["off", "on"]) -> None:
    """By what is kept of pictures and videos alone, and by what is kept of prompts."""
    engine = engine_at(setup.model, harness.root, tokens=7, block_size=4, prefix_cache=prefix_cache)
    seeing = [name for name in MEMBERS if name != "text"]
    for name in seeing:
        n = setup.lengths[name]
        for cached in (0, (n - 1) // 4 * 4 if prefix_cache == "on" else 0):
            found = asked(harness, engine, name, MEMBERS[name], SAMPLING)
            assert found == cached or (cached == 0 < found < 60 and prefix_cache == "on"), (name, found, cached)
            check(setup, harness, engine, [name])
            harness.events.clear()
            harness.finished.clear()
            harness.read.clear()
    n_kept = sum(n_media(MEMBERS[name]) for name in seeing)
    assert (engine.stats.mm_cache_queries, engine.stats.mm_cache_hits) == (2 * n_kept, n_kept)


@SLOW
def test_preempted_while_decoding(setup: Setup, harness: EngineHarness) -> None:
    blocks = sum(-(-n // 4) for n in setup.lengths.values()) + 3  # all prompts fit, their answers do not
    engine = engine_at(
        setup.model, harness.root, tokens=2048, block_size=4, kv_tokens=4 * blocks, seqs=len(MEMBERS),
        max_model_len=max(setup.lengths.values()) + N, prefix_cache="off",
    )  # fmt: skip
    longest_first = sorted(MEMBERS, key=lambda name: -setup.lengths[name])  # no large one waits and makes room
    submit_all(setup, harness, engine, names=longest_first)
    assert engine.stats.preemptions > 0
    assert len(harness.read["three"]) == 3 and len(harness.read["film"]) == 1  # nothing was read a second time


@SLOW
@pytest.mark.parametrize("tokens", [7, 16])
def test_preempted_inside_the_prompt(setup: Setup, harness: EngineHarness, tokens: int) -> None:
    names = "both", "film", "three", "text"
    blocks = sum(-(-setup.lengths[name] // 4) for name in names[:2]) + 1
    engine = engine_at(
        setup.model, harness.root, tokens=tokens, block_size=4, kv_tokens=4 * blocks,
        max_model_len=max(setup.lengths.values()) + N, prefix_cache="off",
    )  # fmt: skip
    submit_all(setup, harness, engine, names=names)
    assert engine.stats.preemptions > 0


# ---- the tower alone


def quiet(tensors: dict[str, Any]) -> None:
    """What comes out of the tower is about as large as the root of an epsilon."""
    for name, value in tensors.items():
        if name.startswith("vision_tower."):
            small = ("cls_token", "position_embeddings", "projection.weight", "projection.bias")
            tensors[name] = value * 1e-3 if name.endswith(small) or "lambda_" in name else value


@pytest.mark.parametrize("vision", [None, LARGE], ids=["300M", "6B"])
@torch.inference_mode()
def test_the_projectors_epsilon(tmp_path: Path, vision: dict[str, Any] | None) -> None:
    twin = edit_tensors(write_internvl(tmp_path / "twin", vision=vision), quiet)
    for path in (twin, write_published_internvl(tmp_path / "published", twin)):
        tiles = np.random.default_rng(3).integers(0, 256, (2, 3, TILE, TILE), dtype=np.uint8)
        found = load_ours(path).encode("image", [torch.from_numpy(as_patches(tiles))], [(2, 4, 4)])[0]
        pixels = normalised(tiles)
        hf = load_hf(twin)
        assert hf.model.vision_tower(pixel_values=pixels).last_hidden_state.std() < 0.01
        expected = hf.model.get_image_features(pixel_values=pixels).pooler_output.flatten(0, 1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.std()))


@torch.inference_mode()
def test_tiles_in_groups(cases: Callable[[str], Case], monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tiles go through the tower some at a time, and come back picture by picture."""
    model, rng = load_ours(cases("transformers").path), np.random.default_rng(5)
    arrays = [torch.from_numpy(rng.integers(0, 256, (16 * n, 588), dtype=np.uint8)) for n in (3, 1, 7)]
    grids = [(3, 4, 4), (1, 4, 4), (7, 4, 4)]
    whole = model.encode("image", arrays, grids)
    monkeypatch.setattr(absolute_vit, "MAX_ROWS", 32)
    for found, expected in zip(model.encode("image", arrays, grids), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert [len(one) for one in whole] == [12, 4, 28]


@SLOW
@pytest.mark.parametrize("name", ["transformers", "transformers-6B"])
def test_bfloat16_rounds_no_worse(cases: Callable[[str], Case], name: str) -> None:
    path = cases(name).path
    layouts: list[Layouts] = [[3, (5, 4, 4), 19], [2, (1, 4, 4), 14, (3, 4, 4), 5], [40]]
    check_bfloat16(path, load_hf(path), layouts, tiled_sample, tiled_logits)
