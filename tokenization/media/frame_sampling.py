"""Which frames of a clip are looked at, how large, how far apart, and by which packets: arithmetic. Knows no files.

The rule is that of the preprocessing package which these models were published with: 2 frames a second, an
even number of them, at least 4 and at most 768, spread evenly over the clip by index; 128 to 768 tokens a frame within
a budget for the whole clip. Requests may turn the knobs of `VideoOptions`; `VideoCaps` are the server's and win.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tokenization.media.smart_resize import MAX_ASPECT, held_resize

FPS = 2.0  # frames looked at per second of a clip, where the request does not say
FRAME_FACTOR = 2  # two frames make one temporal grid of patches, so their number is even
MIN_FRAMES = 4  # sampling by fps takes at least so many, where the clip has them
MAX_FRAMES = 768
FRAME_MIN_PIXELS = 128 * 28 * 28
FRAME_MAX_PIXELS = 768 * 28 * 28
# Pixels of all temporal grids together, that is frames / 2 * height * width: 22,118 tokens of 28 x 28 pixels.
TOTAL_PIXELS = int(24576 * 28 * 28 * 0.9)
_KNOBS = ("fps", "num_frames", "min_pixels", "max_pixels")  # options that are numbers
_MAX_KNOB = 2**53  # whole numbers beyond it are not exact as floats
_MIN_FPS = 1e-4  # one frame in three hours: positions that grow with the seconds between frames still fit 32 bits
MIN_SLACK = 1.05  # where the budget leaves less than a frame's minimum, a frame may have the minimum and 5 %


class VideoError(ValueError):
    """A clip, or a knob beside it, that cannot be served as it is: the client's to change.

    The message is shown to the client: it holds no path, address or name that the client did not write. `knob` is the
    option that is wrong, None where the clip itself is.
    """

    def __init__(self, message: str, knob: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.knob = knob


class VideoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may say beside the key of a video. Raises VideoError for what is no finite number above 0,
    or a rate below one frame in three hours.
    """

    fps: float | None = None  # frames looked at per second; for a list of frames: the rate they were taken at
    num_frames: int | None = None  # frames looked at, instead of fps
    min_pixels: int | None = None  # of one frame after resizing
    max_pixels: int | None = None
    use_audio: bool = False  # of a video: its sound is heard too
    low_detail: bool = False  # of a picture: few pixels will do; a model with one size for all of them may ignore it

    def __post_init__(self) -> None:
        _check("fps", self.fps, (int, float))
        for knob in ("num_frames", "min_pixels", "max_pixels"):
            _check(knob, getattr(self, knob), int)
        if self.fps is not None and self.num_frames is not None:
            raise VideoError("fps and num_frames exclude each other", "num_frames")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise VideoError("min_pixels must not be greater than max_pixels", "min_pixels")

    @classmethod
    def read(cls, part: Mapping[str, object]) -> "VideoOptions":
        """The knobs of a content part as it came from JSON; other keys are not looked at. Raises VideoError."""
        knobs: dict[str, Any] = {knob: part.get(knob) for knob in _KNOBS}
        return cls(**knobs)


class FrameRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint wants to see of a clip where the request does not say: the published rule, or its own.

    Whatever they say, no frame has more than 602,112 pixels (768 tokens of 28 x 28).
    """

    fps: float = FPS
    min_frames: int = MIN_FRAMES  # of those that sampling by fps takes
    max_frames: int = MAX_FRAMES
    min_pixels: int = FRAME_MIN_PIXELS  # of one frame after resizing
    max_pixels: int = FRAME_MAX_PIXELS


class VideoCaps(msgspec.Struct, frozen=True, kw_only=True):
    """What the server looks at in one clip, whatever a request says. Raises ValueError when no clip could fit."""

    max_frames: int = 768  # frames that reach the model; also the longest list of frames
    max_fps: float = 30.0  # frames looked at per second of a file, where `fps` chooses them
    max_duration_s: float = 3600.0
    max_source_pixels: int = 8192 * 4320  # width x height of one frame as stored
    max_source_frames: int = 432_000  # frames that a file may hold, looked at or not: two hours at 60 a second
    max_decoded_frames: int = 36_000  # frames decoded to get at those looked at
    max_decoded_pixels: int = 36_000 * 1920 * 1080  # the same in pixels, so that large frames cost their share
    max_total_pixels: int = int(128_000 * 28 * 28 * 0.9)  # of all temporal grids: frames / 2 * height * width

    def __post_init__(self) -> None:
        if self.max_frames < FRAME_FACTOR or not self.max_fps > 0 or self.max_total_pixels < 1:
            raise ValueError("max_frames must be at least 2, max_fps and max_total_pixels greater than 0")


PUBLISHED = FrameRules()


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at, in the order in which the model sees it."""

    indices: tuple[int, ...]  # of frames in presentation order; even in number, ascending, repeats allowed
    seconds_per_grid: float  # between two temporal grids


def sample(
    n_frames: int,
    video_fps: float,
    options: VideoOptions,
    caps: VideoCaps,
    *,
    rules: FrameRules = PUBLISHED,
) -> Sampling:
    """The frames to look at in a clip of `n_frames` that shows `video_fps` frames a second on average.

    Raises VideoError when the clip is empty or `num_frames` asks for more frames than there are.
    """
    n = count_frames(n_frames, video_fps, options, caps, rules)
    sampled_fps = n / n_frames * video_fps
    return Sampling(indices=frame_indices(n_frames, n), seconds_per_grid=FRAME_FACTOR / sampled_fps)


def sample_list(n_frames: int, options: VideoOptions, caps: VideoCaps, *, rules: FrameRules = PUBLISHED) -> Sampling:
    """The same for a list of `n_frames` frames, which somebody has sampled already: all of them, the last one twice
    where their number is odd. `fps` tells the rate they were taken at, which no cap bounds; `num_frames` chooses
    among them.

    Raises VideoError when the list is empty or too long.
    """
    if not 1 <= n_frames <= caps.max_frames:
        raise VideoError(f"a list of {n_frames} frames cannot be served, it must have 1 to {caps.max_frames}")
    rate = float(options.fps or rules.fps)
    if options.num_frames is not None:
        return sample(n_frames, rate, options, caps)
    indices = tuple(range(n_frames)) + (n_frames - 1,) * (n_frames % FRAME_FACTOR)
    # An odd list at the cap: the last frame has no partner, and repeating it would pass the cap.
    indices = indices[: _floor_even(caps.max_frames)]
    return Sampling(indices=indices, seconds_per_grid=FRAME_FACTOR / rate)


def count_frames(
    n_frames: int, video_fps: float, options: VideoOptions, caps: VideoCaps, rules: FrameRules = PUBLISHED
) -> int:
    """How many frames to look at: even, at least 2. A clip of one frame shows it twice, whatever was asked for."""
    if n_frames < 1 or not (math.isfinite(video_fps) and video_fps > 0):
        raise VideoError("the video holds no frames")
    if n_frames < FRAME_FACTOR:
        return FRAME_FACTOR
    most = _floor_even(min(caps.max_frames, n_frames))
    if options.num_frames is None:
        fps = min(rules.fps if options.fps is None else options.fps, caps.max_fps)
        most = min(most, max(FRAME_FACTOR, _floor_even(rules.max_frames)))
        return _floor_even(min(max(n_frames / video_fps * fps, FRAME_FACTOR, rules.min_frames), most))
    wanted = min(options.num_frames, caps.max_frames)
    if wanted < FRAME_FACTOR:
        raise VideoError(f"num_frames must be at least {FRAME_FACTOR}", "num_frames")
    if wanted > n_frames:
        raise VideoError(f"num_frames must be at most {n_frames}, the number of frames in the video", "num_frames")
    # Halves go to the even number, as everywhere in the reference: 5 becomes 4, 7 becomes 8.
    return min(round(wanted / FRAME_FACTOR) * FRAME_FACTOR, most)


def frame_indices(n_frames: int, n: int) -> tuple[int, ...]:
    """`n` indices, an even number, spread evenly over 0 .. n_frames - 1, both ends included; none lies half-way."""
    return tuple(np.rint(np.linspace(0, n_frames - 1, n)).astype(np.int64).tolist())


def frame_size(
    height: int, width: int, n: int, options: VideoOptions, caps: VideoCaps, *, factor: int = 28
) -> tuple[int, int]:
    """(height, width) that each of `n` frames is resized to: multiples of `factor` within the pixel budget.

    `height` and `width` are those of the upright frame. Raises VideoError when one is more than 200 times the other.
    """
    if height < 1 or width < 1 or max(height, width) > MAX_ASPECT * min(height, width):
        raise VideoError(f"a video of {width} x {height} cannot be served: one side is too long for the other")
    low = min(options.min_pixels or FRAME_MIN_PIXELS, FRAME_MAX_PIXELS)
    budget = min(TOTAL_PIXELS, caps.max_total_pixels) / n * FRAME_FACTOR
    high = max(min(FRAME_MAX_PIXELS, budget), int(low * MIN_SLACK))
    # The reference gives each frame its minimum however many there are; the server's cap and a request's maximum win.
    limit = caps.max_total_pixels / n * FRAME_FACTOR
    bound = min(limit, FRAME_MAX_PIXELS, options.max_pixels or limit)
    high = max(1, min(high, bound))
    return held_resize(
        height, width, factor=factor, min_pixels=int(min(low, high)), max_pixels=int(high), cap=max(1, int(bound))
    )


# ---- the way to a frame


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacketIndex:
    """Which packets make which frame. Frames are numbered as they are shown, packets as they lie in the stream.

    The numbers of packets are the same at every reading, so that no container has to be able to seek.
    """

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
    """Packets start .. stop, decoded without a break for the sake of some frames."""

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


# ---- details


def _floor_even(number: float) -> int:
    return math.floor(number / FRAME_FACTOR) * FRAME_FACTOR


def _check(knob: str, value: object, kinds: type | tuple[type, ...]) -> None:
    """A knob is None, or a number that is finite and above 0; True is no number."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kinds) or not isinstance(value, int | float):
        raise VideoError(f"{knob} must be a{' whole' if kinds is int else ''} number", knob)
    if not 0 < value < _MAX_KNOB:  # false for NaN too
        raise VideoError(f"{knob} must be a number greater than 0 and below 2**53", knob)
    if knob == "fps" and value < _MIN_FPS:
        raise VideoError(f"fps must be at least {_MIN_FPS}", knob)
