"""What is known of a video before its frames are decoded, which frames are wanted, and by which packets."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenization.media.frame_sampling import FrameSize

if TYPE_CHECKING:
    from tokenization.media.video_decoder import VideoReader  # PyAV, which a worker of texts does without


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacketIndex:
    """Frames are numbered as they are shown, packets as they lie in the stream, the same at every reading."""

    packets: np.ndarray  # int64 [frames]: the packet of each frame
    keys: tuple[int, ...]  # packets at which decoding can start, ascending; at least one
    key_frames: tuple[int, ...]  # for each key: the first frame that needs no packet before it
    n_packets: int
    interlaced: bool = False  # a frame may be spread over two packets
    counted: bool = False  # the packets do not tell the order: frame i is the i-th that the decoder gives

    @property
    def all_keys(self) -> bool:
        """Every packet is a picture by itself."""
        return len(self.keys) == self.n_packets


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Packets start .. stop, both included, decoded without a break."""

    start: int
    stop: int
    frames: tuple[int, ...]  # ascending


def plan_runs(index: PacketIndex, frames: Sequence[int]) -> tuple[Run, ...]:
    """The fewest packets that give `frames`: each from the key before it, unless decoding passes by anyway."""
    if index.counted:
        return (Run(start=0, stop=index.n_packets - 1, frames=tuple(sorted(set(frames)))),)
    ways = []
    for frame in set(frames):
        packet = int(index.packets[frame])
        key = bisect_right(index.keys, packet) - 1
        while key > 0 and index.key_frames[key] > frame:  # shown before its own key frame: it needs the key before
            key -= 1
        ways.append((index.keys[key] if key >= 0 else 0, frame, packet))
    runs: list[Run] = []
    for start, frame, packet in sorted(ways):
        last = runs[-1] if runs else None
        # A packet that is a picture by itself costs nothing but itself.
        if last is not None and start <= last.stop + (0 if index.all_keys else 1):
            runs[-1] = Run(start=last.start, stop=max(last.stop, packet), frames=(*last.frames, frame))
        else:
            runs.append(Run(start=start, stop=packet, frames=(frame,)))
    return tuple(runs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoInfo:
    width: int  # of the upright frame, pixels
    height: int
    n_frames: int
    timestamps: np.ndarray  # float64 [n_frames], seconds since the first frame, ascending
    duration: float  # seconds, the last frame's own time included
    fps: float  # average
    rotation: int  # degrees counter-clockwise that make a stored frame upright: 0, 90, 180, 270
    mirrored: bool  # a stored frame is flipped left-right before it is turned
    index: PacketIndex
    reader: "VideoReader"  # of which this is known: it need not be opened again


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoPlan:
    indices: tuple[int, ...]  # of frames in presentation order; even in number
    times: tuple[float, ...]  # seconds since the first frame of the video, for each of them
    seconds_per_grid: float  # between two temporal grids
    size: tuple[int, int]  # (height, width) that every frame is resized to
    info: VideoInfo | None  # None: a list of pictures
    frame: FrameSize | None = None  # what the size follows from; None: it is fixed
    effort: int = 0  # pixels of work that it takes to read these frames (tokenization/media/effort.py)
