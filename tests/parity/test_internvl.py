"""InternVL3 against transformers, from the same weights: ids, pixels, logits in chunks, tokens of mixed batches."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from configs.serve import MediaConfig
from model.families.internvl.processor import TEMPLATE as PUBLISHED_TEMPLATE
from model.net import absolute_vit
from tests.model.engine.engine_harness import clip, engine_at, engine_harness_at, picture
from tests.parity.engine_check import (
    SAMPLING,
    Parts,
    Reference,
    Setup,
    as_reference,
    generated,
    never_sampled,
    prepared_one_by_one,
    submit_all,
)
from tests.parity.harness import load_hf, load_ours
from tests.parity.internvl_reference import TheirProcessor, as_patches, decoded, messages_of, their_frames
from tests.parity.pictures import compare_logits, sample_of
from tests.published.edits import edit_tensors
from tests.published.layouts import host_of
from tests.samples.pictures import encoded, photo, with_alpha
from tests.samples.videos import make_clip
from tests.tiny.internvl import LARGE, TILE, write_internvl, write_published_internvl
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Media
from tokenization.media.frame_sampling import sample_middles
from tokenization.media.source import Source
from tokenization.processor import StageClock

QUESTION = "what is in this image?"
FILM = make_clip(40, rate=10, size=(64, 224), key_every=8)
SHORT = make_clip(5, rate=10, size=(90, 60), key_every=4)  # fewer frames than are looked at
MEMBERS: dict[str, Parts] = {
    "text": ["Hello, world! What is a quick brown fox?"],
    "wide": [picture(150, 90, 1), QUESTION],
    "small": [picture(40, 41, 2), "red, green or blue?"],
    "three": [picture(60, 170, 2), "red", picture(90, 60, 3), picture(200, 120, 4), QUESTION],
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
    template = PUBLISHED_TEMPLATE.replace("<img>", "<video>")
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
def setups(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Setup]:
    made: dict[str, Setup] = {}

    def of(name: str) -> Setup:
        if name not in made:
            root = tmp_path_factory.mktemp(name)
            made[name] = setup_of(case_of(root, **CASES[name]), root / "shm", MEMBERS)
        return made[name]

    return of


@pytest.mark.parametrize(
    ("name", "tokens", "every"),
    [("transformers", 1, 0), ("transformers", 7, 3), ("transformers", 16, 0), ("transformers", 2048, 0),
     ("published", 7, 0), ("published", 2048, 3), ("transformers-6B", 16, 3), ("published-6B", 64, 0)],
)  # fmt: skip
def test_mixed_batches(setups: Callable[[str], Setup], name: str, tokens: int, every: int, tmp_path: Path) -> None:
    setup = setups(name)
    with engine_harness_at(setup.path, tmp_path / "root") as harness:
        submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens), every)


def test_several_answers(setups: Callable[[str], Setup], tmp_path: Path) -> None:
    setup = setups("transformers")
    with engine_harness_at(setup.path, tmp_path / "root") as harness:
        sampling = msgspec.structs.replace(SAMPLING, n=3)
        submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=16), sampling=sampling)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_internvl(tmp_path_factory.mktemp("pixels") / "tiny")


SIZES = [
    (1, 1), (56, 56), (57, 56), (150, 90), (90, 150), (640, 480), (1280, 720), (31, 1023), (3, 300), (112, 90),
    (80, 64), (700, 56),
]  # fmt: skip


@pytest.fixture(scope="module")
def theirs(path: Path) -> TheirProcessor:
    return TheirProcessor(path)


@pytest.mark.parametrize("most", [None, 1, 5, 40])
@pytest.mark.parametrize(
    ("size", "mode"), [*((size, "RGB") for size in SIZES), *(((308, 620), mode) for mode in ("RGBA", "L", "P"))]
)
def test_tiles_and_their_pixels(
    path: Path, theirs: TheirProcessor, size: tuple[int, int], mode: str, most: int | None
) -> None:
    """To the last bit, and in their order, the whole picture last."""
    image = (with_alpha(*size) if mode == "RGBA" else photo(*size)).convert(mode)
    options = MediaOptions(max_dynamic_patch=most)
    host, source = host_of(path), Source(kind="image", param="", data=encoded(image, "PNG"), options=options)
    measure = host.measure(source, MediaConfig())
    found = host.load(source, measure, MediaConfig(), StageClock())
    raw = theirs.images(
        [image], do_rescale=False, do_normalize=False, crop_to_patches=True, return_tensors="np",
        **({} if most is None else {"max_patches": most}),
    )["pixel_values"]  # fmt: skip
    assert measure.grid == (len(raw), 4, 4) and measure.n_tokens == 4 * len(raw) and found.shape == measure.shape
    assert np.array_equal(found, as_patches(raw))


def test_frames() -> None:
    """As its video processor samples them: 8, so many a second, so many."""
    limits, compared = MediaConfig(), 0
    for n_frames in (1, 3, 5, 8, 9, 24, 40, 99, 1000, 60_000):
        for rate in (10.0, 23.976, 29.97):
            for asked in ({}, {"num_frames": 3}, {"num_frames": 7}, {"fps": 0.3}, {"fps": 4.0}):
                if asked.get("num_frames", 8 if not asked else 1) > n_frames:
                    continue
                if "fps" in asked and not 1 <= int(n_frames / rate * asked["fps"]) <= limits.max_frames:
                    continue
                wanted = their_frames(n_frames, rate, **(asked or {"num_frames": 8}))
                found = sample_middles(n_frames, rate, MediaOptions(**asked), limits.max_frames, usual=8)
                assert list(found) == wanted, (n_frames, rate, asked)
                compared += 1
    for n_frames in range(1, 400):
        for n in range(1, min(n_frames, 33)):
            wanted = their_frames(n_frames, 25.0, num_frames=n)
            assert list(sample_middles(n_frames, 25.0, MediaOptions(num_frames=n), 768, usual=8)) == wanted
    assert compared > 80


def original_grid(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """As the published code chooses: among grids in the order of a set."""
    grids = {(i, j) for n in range(1, most + 1) for i in range(1, n + 1) for j in range(1, n + 1) if i * j <= most}
    best, nearest = (1, 1), float("inf")
    for grid in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        off = abs(width / height - grid[0] / grid[1])
        if off < nearest:
            best, nearest = grid, off
        elif off == nearest and width * height > 0.5 * side * side * grid[0] * grid[1]:
            best = grid
    return best


@pytest.mark.parametrize("most", [1, 2, 3, 6, 12, 24])
def test_the_published_code_and_transformers_choose_alike(most: int) -> None:
    """At each shape half-way between two grids, where the order of equal ones could tell, and at random ones."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    from tokenization.tiled_pictures import tile_grid

    grids = [(i, j) for i in range(1, most + 1) for j in range(1, most // i + 1)]
    shapes = [(a * d + c * b, 2 * b * d) for a, b in grids for c, d in grids if (a, b) < (c, d)]
    rng = random.Random(most)
    sizes = [(w * scale, h * scale) for w, h in shapes for scale in (1, 40, 450)]
    sizes += [(rng.randrange(1, 4000), rng.randrange(1, 4000)) for _ in range(300)]
    for width, height in sizes:
        wanted = get_optimal_tiled_canvas((height, width), (448, 448), 1, most)
        assert tile_grid(width, height, 448, most) == wanted == original_grid(width, height, 448, most)


def test_the_published_prompt(setups: Callable[[str], Setup]) -> None:
    """Word by word, and with a system message of the request's own."""
    host = host_of(setups("published").path)
    from tokenization.chat.dialects import chat_from_openai

    shown = [{"type": "image_url", "image_url": {"url": "data:,x"}}, {"type": "text", "text": "hello"}]
    chat = [
        {"role": "user", "content": shown},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "b"},
    ]
    texts = [
        b"".join(map(host.tokenizer.token_bytes, host.render(chat_from_openai(sent)))).decode()
        for sent in (chat, [{"role": "system", "content": "be brief"}, *chat])
    ]
    own = "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
    rest = (
        "<|im_start|>user\n<IMG_CONTEXT>\nhello<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )
    assert texts == [f"<|im_start|>system\n{own}<|im_end|>\n{rest}", f"<|im_start|>system\nbe brief<|im_end|>\n{rest}"]
    assert host.stop_ids == (host.tokenizer.special["<|im_end|>"],)


# ---- the tower alone


def quiet(tensors: dict[str, Any]) -> None:
    """What comes out of the tower is about as large as the root of an epsilon."""
    for name, value in tensors.items():
        if name.startswith("vision_tower."):
            small = ("cls_token", "position_embeddings", "projection.weight", "projection.bias")
            tensors[name] = value * 1e-3 if name.endswith(small) or "lambda_" in name else value


@torch.inference_mode()
def test_the_projectors_epsilon(tmp_path: Path) -> None:
    twin = edit_tensors(write_internvl(tmp_path / "twin"), quiet)
    for path in (twin, write_published_internvl(tmp_path / "published", twin)):
        tiles = np.random.default_rng(3).integers(0, 256, (2, 3, TILE, TILE), dtype=np.uint8)
        found = load_ours(path).encode("image", [torch.from_numpy(as_patches(tiles))], [(2, 4, 4)])[0]
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
        pixels = (torch.from_numpy(tiles).float() / 255 - mean) / std
        hf = load_hf(twin)
        assert hf.model.vision_tower(pixel_values=pixels).last_hidden_state.std() < 0.01
        expected = hf.model.get_image_features(pixel_values=pixels).pooler_output.flatten(0, 1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.std()))


@torch.inference_mode()
def test_tiles_in_groups(setups: Callable[[str], Setup], monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tiles go through the tower some at a time, and come back picture by picture."""
    model, rng = setups("transformers").model, np.random.default_rng(5)
    arrays = [torch.from_numpy(rng.integers(0, 256, (16 * n, 588), dtype=np.uint8)) for n in (3, 1, 7)]
    grids = [(3, 4, 4), (1, 4, 4), (7, 4, 4)]
    whole = model.encode("image", arrays, grids)
    monkeypatch.setattr(absolute_vit, "MAX_ROWS", 32)
    for found, expected in zip(model.encode("image", arrays, grids), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert [len(one) for one in whole] == [12, 4, 28]
