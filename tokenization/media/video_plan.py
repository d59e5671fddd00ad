"""The plan of a video before decoding: what its file tells, and which frames are wanted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenization.media.containers.packet_index import PacketIndex
from tokenization.media.frame_sampling import FrameSize

if TYPE_CHECKING:
    from tokenization.media.video_decoder import VideoReader  # PyAV, which a worker of texts does without


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
