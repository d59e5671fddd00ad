"""InternVL3's host half against transformers and the published code: tiles, their pixels, frames, the prompt."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from configs.serve import MediaConfig
from tests.model.engine.engine_harness import chat_of, clip
from tests.parity.internvl_reference import TheirProcessor, as_patches, their_frames
from tests.published.layouts import host_of
from tests.samples.pictures import encoded, photo, with_alpha
from tests.samples.videos import make_clip
from tests.tables import entries
from tests.tiny.internvl import write_internvl, write_published_internvl
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.media import video_frames
from tokenization.media.frame_sampling import sample_middles
from tokenization.media.source import Source
from tokenization.messages import Prepare, StartWorker
from tokenization.prepare import prepare
from tokenization.processor import Processor, StageClock
from tokenization.tiled_pictures import tile_grid

pytestmark = pytest.mark.network

SLOW = pytest.mark.families


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_internvl(tmp_path_factory.mktemp("pixels") / "tiny")


SIZES = [
    (1, 1), (56, 56), (57, 56), (150, 90), (90, 150), (640, 480), (31, 1023), (3, 300), (112, 90),
    (80, 64), (700, 56),
]  # fmt: skip


@pytest.fixture(scope="module")
def theirs(path: Path) -> TheirProcessor:
    return TheirProcessor(path)


@pytest.mark.parametrize("most", [None, pytest.param(1, marks=SLOW), 5, pytest.param(40, marks=SLOW)])
def test_tiles_and_their_pixels(path: Path, theirs: TheirProcessor, most: int | None) -> None:
    """To the last bit, and in their order, the whole picture last."""
    host = host_of(path)
    with entries() as entry:
        for size, mode in [*((size, "RGB") for size in SIZES), *(((308, 620), mode) for mode in ("RGBA", "L", "P"))]:
            with entry((size, mode)):
                image = (with_alpha(*size) if mode == "RGBA" else photo(*size)).convert(mode)
                check_tiles(host, theirs, image, most)


def check_tiles(host: Processor, theirs: TheirProcessor, image: Image.Image, most: int | None) -> None:
    options = MediaOptions(max_dynamic_patch=most)
    source = Source(kind="image", param="", data=encoded(image, "PNG"), options=options)
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
    best, nearest = (1, 1), float("inf")
    for grid in original_grids(most):
        off = abs(width / height - grid[0] / grid[1])
        if off < nearest:
            best, nearest = grid, off
        elif off == nearest and width * height > 0.5 * side * side * grid[0] * grid[1]:
            best = grid
    return best


@cache
def original_grids(most: int) -> list[tuple[int, int]]:
    grids = {(i, j) for n in range(1, most + 1) for i in range(1, n + 1) for j in range(1, n + 1) if i * j <= most}
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


@pytest.mark.parametrize("most", [1, 2, 3, 6, 12, pytest.param(24, marks=SLOW)])
def test_the_published_code_and_transformers_choose_alike(most: int) -> None:
    """At each shape half-way between two grids, where the order of equal ones could tell, and at random ones."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    grids = [(i, j) for i in range(1, most + 1) for j in range(1, most // i + 1)]
    shapes = [(a * d + c * b, 2 * b * d) for a, b in grids for c, d in grids if (a, b) < (c, d)]
    rng = random.Random(most)
    sizes = [(w * scale, h * scale) for w, h in shapes for scale in (1, 40, 450)]
    sizes += [(rng.randrange(1, 4000), rng.randrange(1, 4000)) for _ in range(300)]
    for width, height in sizes:
        wanted = get_optimal_tiled_canvas((height, width), (448, 448), 1, most)
        assert tile_grid(width, height, 448, most) == wanted == original_grid(width, height, 448, most)


def test_the_published_prompt(path: Path, tmp_path: Path) -> None:
    """Word by word, and with a system message of the request's own."""
    host = host_of(write_published_internvl(tmp_path, path))
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


FILM = make_clip(40, rate=10, size=(64, 224), key_every=8)


class Decoded(Exception):
    """A video was read."""


@pytest.mark.parametrize("options", [{}, {"num_frames": 8}, {"fps": 2.0}])
def test_a_video_that_does_not_fit_is_refused_before_it_is_decoded(
    path: Path, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 frames of 4 tokens each, with their numbers and marks. A shorter one is begun to be read."""

    def read(*_: Any) -> Any:
        raise Decoded

    monkeypatch.setattr(video_frames, "read_video", read)
    job = Prepare(request_id="a", chat=chat_of([clip(FILM, **options), "what is it?"]), salt=b"")
    lease, host = (lambda measured: ["psm_00000000"] * len(measured.nbytes)), host_of(path)
    start = StartWorker(checkpoint=str(path), media=MediaConfig(), max_model_len=64, shm_root=str(tmp_path))
    with pytest.raises(ChatError, match="of media.*the model takes 64") as caught:
        prepare(job, start, host, lease, lambda: None)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(Decoded):
        prepare(job, msgspec.structs.replace(start, max_model_len=256), host, lease, lambda: None)
