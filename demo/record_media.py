"""Makes the clips and sounds in examples/media: things that move, beeps, a glide. Runs no server."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from demo.clips import Clip
from demo.encode import encode_clip, encode_sound
from demo.recording import RATE, Samples
from demo.sounds import Sound

WIDTH, HEIGHT, SECONDS = 320, 240, 2.0


def moving(direction: str) -> Clip:
    """A blue square that goes right, or a green circle that goes left: 2 s of 320 x 240."""
    right = direction == "right"

    def frame(time: float) -> Image.Image:
        share = time / SECONDS
        middle = 50 + (WIDTH - 100) * (share if right else 1 - share)
        image = Image.new("RGB", (WIDTH, HEIGHT), (242, 242, 236))
        draw, box = ImageDraw.Draw(image), (middle - 34, 86, middle + 34, 154)
        draw.rectangle(box, fill=(30, 70, 210)) if right else draw.ellipse(box, fill=(26, 150, 60))
        return image

    return Clip(
        seconds=SECONDS, size=(WIDTH, HEIGHT), direction="right" if right else "left",
        shape="square" if right else "circle", colour="blue" if right else "green", frame=frame,
    )  # fmt: skip


def beeps(count: int) -> Samples:
    """float32 [n] at 16 kHz: so many beeps of 880 Hz, 0.2 s each and 0.2 s apart, between 0.2 s of silence."""
    time = np.arange(RATE // 5) / RATE
    edge = np.minimum(1, np.minimum(time, time[::-1]) / 0.01)  # 10 ms, so that nothing clicks
    beep, quiet = 0.5 * edge * np.sin(2 * np.pi * 880 * time), np.zeros(RATE // 5)
    return np.concatenate([quiet, *[beep, quiet] * count]).astype(np.float32)


def rising() -> Samples:
    """float32 [n] at 16 kHz: a tone that glides from 300 to 1800 Hz in 1.5 s."""
    share = np.arange(3 * RATE // 2) / (3 * RATE // 2)
    phase = 2 * np.pi * np.cumsum(300 * 6**share) / RATE
    return np.asarray(0.5 * np.minimum(1, 30 * np.minimum(share, 1 - share)) * np.sin(phase), np.float32)


def main(argv: list[str]) -> int:
    """`python -m demo.record_media DIR` writes two clips and two sounds."""
    if len(argv) != 1:
        print("usage: python -m demo.record_media DIR", file=sys.stderr)
        return 2
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "moving-right.mp4").write_bytes(encode_clip(moving("right"), 15, "mp4 h264"))
    two = Sound(samples=beeps(2))
    (folder / "moving-left-two-beeps.mp4").write_bytes(encode_clip(moving("left"), 15, "mp4 h264", sound=two))
    (folder / "three-beeps.wav").write_bytes(encode_sound(beeps(3), RATE, "wav"))
    (folder / "rising.mp3").write_bytes(encode_sound(rising(), 44100, "mp3"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
