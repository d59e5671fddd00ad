"""The frames of an animated GIF are its pictures, as Pillow counts them; other blocks are none."""

import io

import numpy as np
from PIL import Image, ImageSequence

from configs.serve import MediaConfig
from tests.samples.pictures import photo
from tests.tables import each_of
from tokenization.media.video_frames import read_frames
from tokenization.media.video_probe import probe

LIMITS = MediaConfig()
BLOCKS = {
    "comment": b"\x21\xfe\x03abc\0",
    "empty comment": b"\x21\xfe\0",
    "comment that looks like a picture": b"\x21\xfe\x09\x2c\0\0\0\0\x20\0\x20\0\0",
    "long comment": b"\x21\xfe" + (b"\xff" + b"," * 255) * 40 + b"\0",
    "application": b"\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0",
    "text": b"\x21\x01\x0c" + bytes(12) + b"\x02hi\0",
    "control": b"\x21\xf9\x04\0\x0a\0\0\0",
    "unknown": b"\x21\x99\x02ab\0",
    "several": b"\x21\xfe\x03abc\0\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0\x21\xf9\x04\0\x0a\0\0\0",
    "zeros": bytes(50),
}


def animation() -> bytes:
    pictures = [photo(32, 32, seed).convert("P") for seed in range(5)]
    buffer = io.BytesIO()
    pictures[0].save(buffer, "GIF", save_all=True, append_images=pictures[1:], duration=100)
    return buffer.getvalue()


@each_of("block", list(BLOCKS.values()), ids=list(BLOCKS))
@each_of("end", [b";", b""])
def test_a_block_behind_the_last_picture_is_no_frame(block: bytes, end: bytes) -> None:
    plain = animation()
    assert plain.endswith(b";")
    data = plain[:-1] + block + end
    with Image.open(io.BytesIO(data)) as image:
        right = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]
    info = probe(data, LIMITS)
    assert (info.n_frames, info.duration, info.fps) == (len(right), 0.5, 10.0) and len(right) == 5
    frames, shown = read_frames(data, info, range(5), (32, 32), LIMITS)
    assert shown == (0, 1, 2, 3, 4) and np.array_equal(frames, right)


# Behind an empty comment FFmpeg's demuxer loses the place of the next picture.
@each_of("block", [block for name, block in BLOCKS.items() if name not in ("zeros", "empty comment")])
def test_a_block_between_two_pictures_hides_none(block: bytes) -> None:
    plain = animation()
    at = plain.index(b"\x21\xf9\x04", plain.index(b"\x21\xf9\x04") + 1)
    assert probe(plain[:at] + block + plain[at:], LIMITS).n_frames == 5


def test_one_picture_and_a_comment() -> None:
    buffer = io.BytesIO()
    photo(32, 32).convert("P").save(buffer, "GIF")
    assert probe(buffer.getvalue()[:-1] + BLOCKS["comment"] + b";", LIMITS).n_frames == 1
