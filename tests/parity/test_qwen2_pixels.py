"""Patches of pictures against transformers' own PIL image processor."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.net.vision import CLIP_MEAN, CLIP_STD
from model.registry import family_of
from tests.parity.conftest import MAX_PIXELS
from tests.parity.theirs import transformers
from tests.samples.pictures import encoded, photo, with_alpha
from tests.tables import entries
from tests.tiny.qwen2_vl import write_json
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.media.source import Source
from tokenization.processor import Measure, Processor, StageClock

# Of the other family the same code makes them: tests/published/test_corpus_of_layouts.py compares its directories.
pytestmark = [pytest.mark.parametrize("qwen2", ["qwen2_vl"], indirect=True), pytest.mark.network]
LIMITS = MediaConfig()


def processed(host: Processor, data: bytes) -> tuple[np.ndarray, Measure]:
    source = Source(kind="image", param="here", data=data)
    measure = host.measure(source, LIMITS)
    pixels = host.load(source, measure, LIMITS, StageClock())
    assert pixels.shape == measure.shape and pixels.dtype == np.uint8 and pixels.nbytes == measure.nbytes
    return pixels, measure


def reference_pixels(image: Image.Image, *, max_pixels: int = MAX_PIXELS, raw: bool) -> tuple[np.ndarray, list[int]]:
    """[n, 588] of the first of the two equal frames, and the grid."""
    size = {"shortest_edge": 3136, "longest_edge": max_pixels}
    processor = transformers.Qwen2VLImageProcessorPil(size=size, do_rescale=not raw, do_normalize=not raw)
    out = processor(images=[image], return_tensors="np")
    frames = out["pixel_values"].reshape(-1, 3, 2, 14 * 14)
    assert np.array_equal(frames[:, :, 0], frames[:, :, 1])
    return frames[:, :, 0].reshape(-1, 588), out["image_grid_thw"][0].tolist()


def assert_same_pixels(host: Processor, data: bytes, *, max_pixels: int = MAX_PIXELS) -> None:
    image: Image.Image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    pixels, measure = processed(host, data)
    expected, grid = reference_pixels(image, max_pixels=max_pixels, raw=True)
    assert list(measure.grid) == grid
    assert np.array_equal(pixels, expected)
    channel = pixels.reshape(-1, 3, 196).astype(np.float32)
    mean, std = np.array(CLIP_MEAN, np.float32)[:, None], np.array(CLIP_STD, np.float32)[:, None]
    normalised = ((channel / 255 - mean) / std).reshape(-1, 588)
    assert np.abs(normalised - reference_pixels(image, max_pixels=max_pixels, raw=False)[0]).max() < 1e-6


def host_of(checkpoint: Checkpoint, max_pixels: int) -> Processor:
    return family_of(checkpoint).processor(checkpoint, max_pixels)


# ---- pixels

SIZES = [
    (1, 1), (1, 2), (2, 1), (3, 3), (1, 150), (200, 1), (28, 28), (56, 56), (55, 57), (70, 98), (84, 84), (113, 331),
    (640, 480), (481, 641), (1280, 720), (1920, 1080), (100, 2900),
]  # fmt: skip


def test_patches_of_many_sizes(host: Processor) -> None:
    with entries() as entry:
        for size in SIZES:
            with entry(size):
                assert_same_pixels(host, encoded(photo(*size), "PNG" if min(size) < 28 else "JPEG"))


MODES = {
    "JPEG": ["RGB", "L", "1", "CMYK"],
    "PNG": ["RGB", "RGBA", "L", "LA", "P", "1"],
    "WEBP": ["RGB", "RGBA"],
    "GIF": ["RGB", "RGBA", "L", "LA", "P", "1"],
    "BMP": ["RGB", "RGBA", "L", "P", "1"],
}


def test_patches_of_many_modes(host: Processor) -> None:
    with entries() as entry:
        for form, modes in MODES.items():
            for mode in modes:
                image = with_alpha(90, 61) if mode in ("RGBA", "LA") else photo(90, 61)
                with entry((form, mode)):
                    assert_same_pixels(host, encoded(image.convert(mode), form))


def test_16_bit_grey_is_the_one_exception(host: Processor) -> None:
    """The reference makes all above level 255 white; ours is what it makes of the high bytes (docs/adr/0026)."""
    levels = np.asarray(photo(90, 61).convert("L")).astype(np.uint16) * 256 + 77
    data = encoded(Image.fromarray(levels), "PNG")
    theirs, grid = reference_pixels(Image.open(io.BytesIO(data)), raw=True)
    assert (theirs == 255).mean() > 0.9, "the reference no longer clips: the exception can go"
    pixels, measure = processed(host, data)
    scaled, _ = reference_pixels(Image.fromarray((levels >> 8).astype(np.uint8)), raw=True)
    assert list(measure.grid) == grid and np.array_equal(pixels, scaled)


def test_patches_of_transparent_palettes_and_keyed_colours(host: Processor) -> None:
    for mode, form in (("P", "PNG"), ("P", "GIF"), ("RGB", "PNG"), ("L", "PNG")):
        buffer = io.BytesIO()
        keyed = photo(64, 48).convert(mode)
        first = keyed.getpixel((0, 0))
        keyed.save(buffer, form, transparency=first)
        assert Image.open(io.BytesIO(buffer.getvalue())).info.get("transparency") is not None
        assert_same_pixels(host, buffer.getvalue())


def test_patches_of_every_orientation(host: Processor) -> None:
    with entries() as entry:
        for form in ("JPEG", "PNG", "WEBP"):
            for orientation in range(1, 9):
                with entry((form, orientation)):
                    assert_same_pixels(host, encoded(photo(150, 70), form, orientation=orientation))


@pytest.fixture(scope="module")
def large() -> bytes:
    """Above every bound below."""
    return encoded(photo(1200, 900), "JPEG")


def test_the_smaller_of_the_two_caps_wins(qwen2: Checkpoint, large: bytes) -> None:
    with entries() as entry:
        for cap, most in ((MAX_PIXELS, MAX_PIXELS), (200_704, 200_704), (1000, 1000), (10**9, 28 * 28 * 1280)):
            with entry(cap):
                capped = host_of(qwen2, cap)
                source = Source(kind="image", param="here", data=large)
                _, rows, columns = capped.measure(source, LIMITS).grid
                assert 0.9 * most - 28 * 28 < rows * columns * 196 <= max(most, 28 * 28)
                if most >= 3136:
                    assert_same_pixels(capped, large, max_pixels=most)


BOUNDS: list[tuple[dict[str, Any], int]] = [
    ({"min_pixels": 3136, "max_pixels": 100_352}, 100_352),
    ({"size": {"shortest_edge": 3136, "longest_edge": 100_352}}, 100_352),
    ({"size": {"min_pixels": 3136, "max_pixels": 100_352}}, 100_352),
    ({"max_pixels": 50_176, "size": {"shortest_edge": 3136, "longest_edge": 100_352}}, 50_176),
    ({}, 28 * 28 * 1280),
]


def test_pixel_bounds_of_the_checkpoint(qwen2: Checkpoint, tmp_path: Path, large: bytes) -> None:
    for path in qwen2.path.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with entries() as entry:
        for settings, most in BOUNDS:
            write_json(tmp_path / "preprocessor_config.json", settings)
            with entry(settings):
                assert_same_pixels(host_of(Checkpoint(tmp_path), 10**9), large, max_pixels=most)


OPTIONS: list[tuple[tuple[int, int], int, dict[str, Any], tuple[int, int]]] = [  # sizes are (width, height)
    ((1500, 1000), 10**9, {"low_detail": True}, (616, 392)),
    ((1500, 1000), 10**9, {"low_detail": True, "max_pixels": 10**6, "min_pixels": 10**6}, (616, 392)),
    ((1500, 1000), 10**9, {"low_detail": True, "max_pixels": 28 * 28 * 24}, (168, 112)),
    ((60, 60), 10**9, {"low_detail": True}, (56, 56)),
    ((301, 300), 200_704, {"min_pixels": 200_704}, (448, 420)),
    ((4000, 20), 100_352, {}, (3584, 28)),
    ((4000, 20), 10**9, {}, (4004, 28)),
]


def test_options_turn_knobs_under_the_cap(qwen2: Checkpoint) -> None:
    with entries() as entry:
        for size, cap, options, expected in OPTIONS:
            data = encoded(Image.new("1", size), "PNG")
            source = Source(kind="image", param="here", data=data, options=MediaOptions(**options))
            with entry((size, cap, options)):
                measure = host_of(qwen2, cap).measure(source, LIMITS)
                assert (measure.grid[2] * 14, measure.grid[1] * 14) == expected


def test_an_image_of_too_long_a_shape_is_refused(host: Processor) -> None:
    with pytest.raises(ChatError, match="200 times") as caught:
        host.measure(Source(kind="image", param="inputs[0].image", data=encoded(photo(201, 1), "PNG")), LIMITS)
    assert caught.value.param is None
