"""The form of a video's plan, before decoding: which frames are wanted, and how large; video_frames.py makes it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenization.media.frame_sampling import FRAME_FACTOR, FrameSize

if TYPE_CHECKING:
    from tokenization.media.video_probe import VideoInfo  # PyAV, which a worker of texts does without


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoPlan:
    indices: tuple[int, ...]  # of frames in presentation order; as many for each temporal grid
    seconds_per_grid: float  # between two temporal grids
    fps: float  # of the frames that the indices count
    size: tuple[int, int]  # (height, width) that every frame is resized to
    info: "VideoInfo | None"  # None: a list of pictures
    frame: FrameSize | None = None  # what the size follows from; None: it is fixed
    per_grid: int = FRAME_FACTOR  # frames of one temporal grid
    effort: int = 0  # pixels of work that it takes to read these frames (tokenization/media/effort.py)
