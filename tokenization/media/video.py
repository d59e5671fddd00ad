"""A video, whether one file or a list of pictures: which frames, how large, then those frames."""

from collections.abc import Sequence

import numpy as np

from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError
from tokenization.media.effort import allowed_effort, picture_effort
from tokenization.media.frame_sampling import (
    FRAME_FACTOR,
    PUBLISHED,
    FrameRules,
    FrameSize,
    sample_frame_list,
    sample_frames,
)
from tokenization.media.source import Source, video_caps
from tokenization.media.video_frames import count_effort, frames_from_jpegs, probe_jpegs, read_frames
from tokenization.media.video_plan import VideoInfo, VideoPlan
from tokenization.media.video_probe import probe


def plan_video(source: Source, limits: MediaConfig, rules: FrameRules = PUBLISHED, *, factor: int) -> VideoPlan:
    """Frames and their size, with sides that `factor` divides. Raises ChatError for no video or above the limits."""
    caps, options = video_caps(limits), source.options
    info: VideoInfo | None = None
    if source.frames:
        headers = probe_jpegs(source.frames, caps)
        height, width = headers[0].height, headers[0].width
        sampling = sample_frame_list(len(source.frames), options, caps, rules=rules)
        rate = options.fps or rules.fps
        if len(source.frames) / rate > caps.max_duration_s:
            raise ChatError(f"fps: the video lasts more than the allowed {caps.max_duration_s:.0f} s")
        times = tuple(i / rate for i in sampling.indices)
        effort = sum(picture_effort(source.frames[i], headers[i].pixels) for i in set(sampling.indices))
    else:
        info = probe(source.data, caps, source.check)
        height, width = info.height, info.width
        sampling = sample_frames(info.n_frames, info.fps, options, caps, rules=rules)
        times = tuple(info.timestamps[list(sampling.indices)].tolist())
        effort = count_effort(info, sampling.indices, caps)
    frame = FrameSize(
        height=height, width=width, n=len(sampling.indices), options=options, caps=caps, rules=rules, factor=factor
    )
    size = frame.find()
    return VideoPlan(
        indices=sampling.indices, times=times, seconds_per_grid=sampling.seconds_per_grid, size=size, info=info,
        frame=frame, effort=effort,
    )  # fmt: skip


def read_video(source: Source, plan: VideoPlan, limits: MediaConfig) -> np.ndarray:
    """uint8 [n, height, width, 3]: the frames of the plan, upright and resized. Raises ChatError when none decodes.

    A frame of a file that does not decode shows the one before, else the first that does; a damaged end is left out.
    """
    caps = video_caps(limits)
    if plan.info is None:
        return frames_from_jpegs(source.frames, plan.indices, plan.size, caps, source.check)
    # Frames may grow in mid-file, which no header tells: the plan's cost and what the bytes allow bound them.
    most = plan.effort + allowed_effort(len(source.data), limits, films=len(source.data))
    frames, kept = read_frames(source.data, plan.info, plan.indices, plan.size, caps, source.check, max_effort=most)
    return frames if len(kept) == len(plan.indices) else _bridged(frames, kept, plan.indices)


def video_patches(frames: np.ndarray, *, patch: int, merge: int) -> np.ndarray:
    """uint8 [n, height, width, 3] -> [n/2 * h * w, 3 * 2 * patch * patch], h and w in patches.

    Rows are in the order (t, h', w', merge, merge), columns are (channel, frame, y, x).
    """
    n, height, width, _ = frames.shape
    t, rows, columns = n // FRAME_FACTOR, height // (patch * merge), width // (patch * merge)
    # One row of one patch is one item of `patch` bytes, so that numpy moves it whole.
    line = np.dtype(f"V{patch}")
    out = np.empty((t, rows, columns, merge, merge, 3, FRAME_FACTOR, patch), line)
    for channel in range(3):
        plane = np.ascontiguousarray(frames[..., channel])  # [n, height, width]
        lines = plane.view(line).reshape(t, FRAME_FACTOR, rows, merge, patch, columns, merge)
        out[:, :, :, :, :, channel] = lines.transpose(0, 2, 5, 3, 6, 1, 4)
    return out.view(np.uint8).reshape(t * rows * columns * merge * merge, 3 * FRAME_FACTOR * patch * patch)


def _bridged(frames: np.ndarray, kept: Sequence[int], indices: Sequence[int]) -> np.ndarray:
    """The frames that decoded, each shown until the next one, up to the last of them."""
    decoded = set(kept)
    rows = [row for row, index in enumerate(indices) if index in decoded]
    n = -(-(rows[-1] + 1) // FRAME_FACTOR) * FRAME_FACTOR
    shown = np.searchsorted(rows, np.arange(n), side="right") - 1
    return frames[np.maximum(shown, 0)]
