"""Which frames of a video are looked at, how large and how far apart they are.

The rule is that of the models' published preprocessing package, 0.0.10 to 0.0.14: 2 frames a second, 4 to 768 and an
even number, spread evenly by index; 128 to 768 tokens a frame within a budget for the video, 90 % of 128,000 tokens. A
checkpoint's `FrameRules` replace the bounds of a frame; `whole` ones are another rule, which later processors have.
The server's `MediaConfig` wins over `MediaOptions`.
"""

import math

import msgspec
import numpy as np

from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.media.smart_resize import MAX_ASPECT, held_resize

FPS = 2.0  # frames looked at per second of a video, where the request does not say
FRAME_FACTOR = 2  # two frames make one temporal grid of patches, so their number is even
MIN_FRAMES = 4  # sampling by fps takes at least so many, where the video has them
MAX_FRAMES = 768
MAX_FPS = 30.0  # frames looked at per second of a file, where `fps` chooses them; of the server, whatever is asked for
FRAME_MIN_PIXELS = 128 * 28 * 28
FRAME_MAX_PIXELS = 768 * 28 * 28
# Pixels of all temporal grids together, that is frames / 2 * height * width: 115,200 tokens of 28 x 28 pixels.
TOTAL_PIXELS = int(128_000 * 28 * 28 * 0.9)
UNBOUNDED = 1 << 62  # pixels: more than any number of frames has
MIN_SLACK = 1.05  # where the budget leaves less than a frame's minimum, a frame may have the minimum and 5 %


class FrameRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint wants where the request does not say."""

    fps: float = FPS
    min_frames: int = MIN_FRAMES  # of those that sampling by fps takes
    max_frames: int = MAX_FRAMES
    min_pixels: int = FRAME_MIN_PIXELS  # of one frame after resizing, or of all where they are `whole`
    max_pixels: int = FRAME_MAX_PIXELS
    # Pixels are those of all frames together, whose number may be odd: then the last one is shown twice.
    whole: bool = False


PUBLISHED = FrameRules()


class FrameSampling(msgspec.Struct, frozen=True, kw_only=True):
    indices: tuple[int, ...]  # of frames in presentation order; even in number, ascending, repeats allowed
    n: int  # of them that were asked for: one less where the last is repeated to make an odd number even
    seconds_per_grid: float  # between two temporal grids


def sample_frames(
    n_frames: int,
    video_fps: float,
    options: MediaOptions,
    limits: MediaConfig,
    *,
    rules: FrameRules = PUBLISHED,
) -> FrameSampling:
    """`video_fps` is an average. Raises ChatError for no frames, and `num_frames` below 2."""
    n = count_frames(n_frames, video_fps, options, limits, rules)
    sampled_fps = n / n_frames * video_fps
    indices = frame_indices(n_frames, n)
    return FrameSampling(
        indices=indices + indices[-1:] * (n % FRAME_FACTOR), n=n, seconds_per_grid=FRAME_FACTOR / sampled_fps
    )


def sample_frame_list(
    n_frames: int, options: MediaOptions, limits: MediaConfig, *, rules: FrameRules = PUBLISHED
) -> FrameSampling:
    """All frames of a list taken at `fps`, made even in number, or `num_frames` of them. Raises ChatError."""
    if not 1 <= n_frames <= limits.max_frames:
        raise ChatError(f"a list of {n_frames} frames cannot be served, it must have 1 to {limits.max_frames}")
    rate = float(options.fps or rules.fps)
    if options.num_frames is not None:
        return sample_frames(n_frames, rate, options, limits, rules=rules)
    indices = tuple(range(n_frames)) + (n_frames - 1,) * (n_frames % FRAME_FACTOR)
    # An odd list at the cap: the last frame has no partner, and repeating it would pass the cap.
    indices = indices[: _floor_even(limits.max_frames)]
    return FrameSampling(indices=indices, n=min(n_frames, len(indices)), seconds_per_grid=FRAME_FACTOR / rate)


def count_frames(
    n_frames: int, video_fps: float, options: MediaOptions, limits: MediaConfig, rules: FrameRules = PUBLISHED
) -> int:
    """At least 2, and even unless the rules are `whole` or all are asked for; a video of one frame shows it twice.

    The reference refuses more frames than there are; vLLM takes all, and so does this. Raises as sample_frames does.
    """
    if n_frames < 1 or not (math.isfinite(video_fps) and video_fps > 0):
        raise ChatError("the video holds no frames")
    if n_frames < FRAME_FACTOR:
        return FRAME_FACTOR
    most = _floor_even(min(limits.max_frames, n_frames))
    if options.num_frames is None:
        fps = min(rules.fps if options.fps is None else options.fps, MAX_FPS)
        if rules.whole:
            most = min(_floor_even(limits.max_frames), n_frames, max(FRAME_FACTOR, rules.max_frames))
            return min(max(int(n_frames / video_fps * fps), FRAME_FACTOR, rules.min_frames), most)
        most = min(most, max(FRAME_FACTOR, _floor_even(rules.max_frames)))
        return _floor_even(min(max(n_frames / video_fps * fps, FRAME_FACTOR, rules.min_frames), most))
    wanted = min(options.num_frames, limits.max_frames)
    if wanted < FRAME_FACTOR:
        raise ChatError(f"num_frames must be at least {FRAME_FACTOR}")
    if rules.whole or options.num_frames > n_frames:
        return min(wanted, n_frames, _floor_even(limits.max_frames))
    # Halves go to the even number, as everywhere in the reference: 5 becomes 4, 7 becomes 8.
    return min(round(wanted / FRAME_FACTOR) * FRAME_FACTOR, most)


def frame_indices(n_frames: int, n: int) -> tuple[int, ...]:
    """`n` indices spread evenly over 0 .. n_frames - 1, both ends included; what lies half-way is the even one."""
    return tuple(np.rint(np.linspace(0, n_frames - 1, n)).astype(np.int64).tolist())


def sample_middles(n_frames: int, video_fps: float, options: MediaOptions, most: int, *, usual: int) -> tuple[int, ...]:
    """Frames from the middles of equal parts: `num_frames`, as many as `fps` takes, else `usual`, but at most `most`.

    Raises ChatError for no frames. As a video processor of transformers 5.23 does, but for `num_frames` above
    `n_frames`: these are all.
    """
    if n_frames < 1 or not (math.isfinite(video_fps) and video_fps > 0):
        raise ChatError("the video holds no frames")
    wanted = options.num_frames or usual
    if options.num_frames is None and options.fps is not None:
        wanted = int(n_frames / video_fps * min(options.fps, MAX_FPS))
    n = max(1, min(wanted, n_frames, most))
    part = n_frames / n
    # In float32 at last, as the reference counts: a middle just below a whole number is that number.
    return tuple((part / 2 + part * np.arange(n)).astype(np.float32).astype(np.int64).tolist())


class FrameSize(msgspec.Struct, frozen=True, kw_only=True):
    """All that the size of a video's frames depends on."""

    height: int  # of an upright frame, pixels
    width: int
    n: int  # frames looked at
    options: MediaOptions
    limits: MediaConfig
    rules: FrameRules = PUBLISHED
    factor: int = 28  # divides both sides of what comes out
    shown: int | None = None  # those without the one that is shown twice to make them even; None: all of them

    def find(self, total: int = UNBOUNDED) -> tuple[int, int]:
        """(height, width) within `total` pixels of all temporal grids, if a grid may have factor^2 of them.

        Raises ChatError above 200:1 or for a side of 0.
        """
        height, width = self.height, self.width
        if height < 1 or width < 1 or max(height, width) > MAX_ASPECT * min(height, width):
            raise ChatError(f"a video of {width} x {height} cannot be served: one side is too long for the other")
        if self.rules.whole:
            return self._find_whole(total)
        fewest, most, asked = self._bounds()
        # The reference gives each frame its minimum however many there are; the server's bounds win.
        limit = min(self.limits.max_pixels, min(self.limits.max_video_pixels, total) * FRAME_FACTOR // self.n)
        high = max(1, min(most, limit))
        # Rounding may pass the checkpoint's bounds, as in the reference, but neither the request's nor the server's.
        cap = max(1, min(limit, asked)) if self.options.bounds_pixels else max(1, limit)
        return held_resize(height, width, factor=self.factor, min_pixels=min(fewest, high), max_pixels=high, cap=cap)

    def _find_whole(self, total: int) -> tuple[int, int]:
        options, rules, n = self.options, self.rules, self.shown or self.n
        limit = min(self.limits.max_pixels, min(self.limits.max_video_pixels, total) * FRAME_FACTOR // self.n)
        most = options.max_pixels * n if options.max_pixels else max(rules.max_pixels, (options.min_pixels or 0) * n)
        most = min(most, (options.total_pixels or UNBOUNDED) * FRAME_FACTOR)
        high = max(n, min(most, limit * n))
        fewest = options.min_pixels * n if options.min_pixels else rules.min_pixels
        cap = max(1, min(limit, most // n)) if options.bounds_pixels else max(1, limit)
        return held_resize(
            self.height, self.width, factor=self.factor, min_pixels=min(fewest, high), max_pixels=high, cap=cap,
            frames=n,
        )  # fmt: skip

    def wanted(self, max_pixels: int = UNBOUNDED) -> tuple[int, int]:
        """What `find` would give without any bound of the server, or with this one of a frame alone."""
        limits = msgspec.structs.replace(self.limits, max_pixels=max_pixels, max_video_pixels=UNBOUNDED)
        return msgspec.structs.replace(self, limits=limits).find()

    def _bounds(self) -> tuple[int, int, int]:
        """(fewest, most, the most without the budget) pixels of a frame, as request and checkpoint have it."""
        options, rules = self.options, self.rules
        ceiling = max(FRAME_MAX_PIXELS, rules.max_pixels)
        asked = min(options.max_pixels or max(rules.max_pixels, options.min_pixels or 0), ceiling)
        fewest = min(options.min_pixels or rules.min_pixels, asked)
        budget = (options.total_pixels or TOTAL_PIXELS) * FRAME_FACTOR / self.n
        return fewest, int(min(asked, max(budget, int(fewest * MIN_SLACK)))), asked


# ---- details


def _floor_even(number: float) -> int:
    return math.floor(number / FRAME_FACTOR) * FRAME_FACTOR
