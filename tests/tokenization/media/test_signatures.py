"""A file in the field of another kind is told the field that takes it; media are those of examples/."""

import numpy as np
import pytest

from configs.serve import MediaConfig
from tests.e2e.running import REPO
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Kind
from tokenization.media.audio import read_sound
from tokenization.media.containers.signatures import meant_as
from tokenization.media.image import read_header
from tokenization.media.video_probe import probe

MEDIA: dict[str, Kind] = {
    "moving-right.mp4": "video", "ferry.jpg": "image", "chart.png": "image", "rising.mp3": "audio",
    "three-beeps.wav": "audio",
}  # fmt: skip


def opened(data: bytes, kind: Kind) -> str:
    """What is said of it in the field of that kind."""
    with pytest.raises(ChatError) as caught:
        if kind == "image":
            read_header(data, max_source_pixels=1 << 20)
        elif kind == "video":
            probe(data, MediaConfig())
        else:
            read_sound(data, MediaConfig())
    return caught.value.message


@each_of("name", MEDIA)
def test_a_medium_in_the_field_of_pictures(name: str) -> None:
    data = (REPO / "examples/media" / name).read_bytes()
    if MEDIA[name] == "image":
        assert meant_as(data, "image") == ""
        return
    said = opened(data, "image")
    assert said.endswith(f"which is sent as '{MEDIA[name]}_url', on /chat as '{MEDIA[name]}'"), said


@each_of("kind", ["video", "audio"])
@each_of("name", ["ferry.jpg", "chart.png"])
def test_a_picture_in_another_field(name: str, kind: Kind) -> None:
    data = (REPO / "examples/media" / name).read_bytes()
    assert "it looks like an image, which is sent as 'image_url'" in opened(data, kind)


def test_what_looks_like_nothing_is_told_nothing() -> None:
    noise = np.random.default_rng(0).integers(0, 128, 400, np.uint8).tobytes()
    assert "looks like" not in opened(noise, "image")
    assert meant_as(b"", "video") == ""
    assert meant_as(b"\0\0\0\x18ftypheic", "image") == "", "no picture that is read, and no video"
