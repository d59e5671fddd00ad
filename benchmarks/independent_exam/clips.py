"""Clips of one thing that moves along one direction, drawn frame by frame and encoded as H.264 in MP4."""

import io
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.independent_exam.scenes import Scene, moved, scene

# Without x264's tree of macroblocks, whose assembler reads memory beyond small pictures: the same clip differed.
_ENCODER = {"preset": "veryfast", "crf": "24", "x264-params": "mbtree=0"}
_STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The first frame, how far the thing goes in pixels along x and y, and over how many frames at what rate."""

    first: Scene
    travel: tuple[float, float]
    frames: int
    rate: int


def clip(way: str, shape: str, look: str, rng: np.random.Generator) -> Clip:
    """A thing goes this way over at least four tenths of the picture; where it starts is drawn."""
    first = scene([(shape, "")], look, rng, largest=0.32, shorter=int(rng.integers(100, 161)) * 2)
    first = replace(first, width=first.width // 2 * 2, height=first.height // 2 * 2)
    thing, (x, y) = first.things[0], _STEPS[way]
    left, top, right, bottom = thing.box
    sides = (first.width, first.height)
    room = np.array([first.width - (right - left), first.height - (bottom - top)])  # for the upper left corner
    axis = 0 if x else 1
    travel = room[axis] * rng.uniform(0.62, 0.95)
    start = list(room * rng.uniform(0.05, 0.95, 2))
    slack = (room[axis] - travel) * rng.uniform(0.1, 0.9)
    start[axis] = slack if (x, y)[axis] > 0 else room[axis] - slack
    there = moved(thing, np.array([start[0] - left, start[1] - top]))
    assert travel >= 0.4 * sides[axis]
    return Clip(
        first=replace(first, things=(there,)),
        travel=(float(x * travel), float(y * travel)),
        frames=int(rng.integers(16, 31)),
        rate=int(rng.integers(8, 16)),
    )


def encoded(found: Clip) -> tuple[str, bytes]:
    """The media type and the bytes of a file."""
    import av  # of .venv; the numbers alone need neither this nor Skia

    from benchmarks.independent_exam.drawing import pixels

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=found.rate, options=_ENCODER)
        stream.thread_count = 1
        stream.width, stream.height, stream.pix_fmt = found.first.width, found.first.height, "yuv420p"
        for n in range(found.frames):
            by = np.array(found.travel) * n / (found.frames - 1)
            now = replace(found.first, things=tuple(moved(thing, by) for thing in found.first.things))
            same = np.random.default_rng(found.first.detail)  # what the look adds stays where it is
            frame = av.VideoFrame.from_ndarray(pixels(now, same), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return "video/mp4", file.getvalue()
