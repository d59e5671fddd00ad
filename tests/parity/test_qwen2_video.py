"""Patches of videos: each frame as transformers' own image class makes it, in pairs, from frames decoded here."""

import io

import av
import numpy as np
import pytest
from PIL import Image

from configs.serve import MediaConfig
from tests.parity.theirs import transformers
from tests.samples.videos import B_FRAMES, make_clip
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import FRAME_MAX_PIXELS, FRAME_MIN_PIXELS
from tokenization.media.source import Source
from tokenization.processor import Processor, StageClock

pytestmark = pytest.mark.network

LIMITS = MediaConfig()


def decoded(data: bytes, indices: tuple[int, ...], turns: int) -> list[Image.Image]:
    """The frames of a clip that is decoded whole, turned counter-clockwise by so many quarters."""
    with av.open(io.BytesIO(data), mode="r") as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return [Image.fromarray(np.ascontiguousarray(np.rot90(frames[i], turns))) for i in indices]


def patches_of(image: Image.Image, most: int) -> tuple[np.ndarray, list[int]]:
    """[h * w, 3, 196] of one frame of at most so many pixels, and its grid, by the image class."""
    size = {"shortest_edge": min(FRAME_MIN_PIXELS, most), "longest_edge": most}
    processor = transformers.Qwen2VLImageProcessorPil(size=size, do_rescale=False, do_normalize=False)
    out = processor(images=[image], return_tensors="np")
    return out["pixel_values"].reshape(-1, 3, 2, 196)[:, :, 0], out["image_grid_thw"][0].tolist()


@pytest.mark.parametrize(
    ("clip", "turns", "options"),
    [
        ({"n": 60, "options": B_FRAMES}, 0, {}),
        ({"n": 60, "options": B_FRAMES, "turn": (90.0, False)}, 1, {"fps": 4.0}),
        ({"n": 45, "codec": "libvpx", "container": "webm", "size": (120, 90), "rate": 15}, 0, {"num_frames": 6}),
        ({"n": 24, "codec": "gif", "container": "gif", "pixels": "rgb8", "rate": 10}, 0, {"max_pixels": 28 * 28 * 6}),
        ({"n": 1}, 0, {}),
    ],
    ids=["mp4", "turned", "webm", "gif", "one frame"],
)
def test_each_frame_is_what_the_image_class_makes_of_it(
    host: Processor, clip: dict[str, object], turns: int, options: dict[str, float]
) -> None:
    data = make_clip(**clip)  # type: ignore[arg-type]
    source = Source(kind="video", param="", data=data, options=MediaOptions(**options))  # type: ignore[arg-type]
    measure = host.measure(source, LIMITS)
    pixels = host.load(source, measure, LIMITS, StageClock())
    assert measure.video is not None and pixels.shape == measure.shape and pixels.dtype == np.uint8
    t, h, w = measure.grid
    found = pixels.reshape(t, h * w, 3, 2, 196)
    assert len(measure.video.indices) == 2 * t
    for i, image in enumerate(decoded(data, measure.video.indices, turns)):
        expected, grid = patches_of(image, source.options.max_pixels or FRAME_MAX_PIXELS)
        assert grid == [1, h, w]
        assert np.array_equal(found[i // 2, :, :, i % 2], expected)


def test_seconds_come_from_the_frames_that_were_sampled(host: Processor) -> None:
    data = make_clip(90, rate=30)  # three seconds
    for fps, frames, seconds in ((1, 4, 1.5), (2, 6, 1.0), (4, 12, 0.5), (30, 90, 2 / 30)):
        source = Source(kind="video", param="", data=data, options=MediaOptions(fps=fps))
        clip = host.measure(source, LIMITS).video
        assert clip is not None and len(clip.indices) == frames
        assert clip.seconds_per_grid == pytest.approx(seconds)
