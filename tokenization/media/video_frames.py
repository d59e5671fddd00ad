"""A video, whether one file or a list of pictures: which frames, how large, then those frames, upright and as RGB.

Of a file only packets are decoded that lead to them. A frame that does not decode shows the one before it. What stands
beside this: video_probe.py tells what a file holds, video_decoder.py decodes it, video_plan.py is the plan's form.
"""

from collections.abc import Sequence

import av
import msgspec
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from PIL import Image

from configs.serve import MediaConfig
from tokenization.cancel import Check, go_on
from tokenization.chat.errors import ChatError, in_frame
from tokenization.media.effort import STUDIED, allowed_effort, picture_effort, video_effort, video_weight
from tokenization.media.frame_sampling import (
    FPS,
    FRAME_FACTOR,
    PUBLISHED,
    UNBOUNDED,
    FrameRules,
    FrameSize,
    sample_frame_list,
    sample_frames,
    sample_middles,
)
from tokenization.media.image import ImageHeader, Picture, decode, read_header
from tokenization.media.source import Source
from tokenization.media.video_decoder import GROWING, THREADS, UNDECODABLE, most_pixels, open_video, plan_runs
from tokenization.media.video_plan import VideoPlan
from tokenization.media.video_probe import VideoInfo, probe
from tokenization.worker_memory import raise_if_memory

_FULL_HD = 1920 * 1080  # pixels; larger frames count as more of those that may be decoded
_TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}


def plan_video(source: Source, limits: MediaConfig, rules: FrameRules = PUBLISHED, *, factor: int) -> VideoPlan:
    """Frames and their size, with sides that `factor` divides. Raises ChatError for no video or above the limits."""
    options = source.options
    info: VideoInfo | None = None
    if source.frames:
        headers = probe_jpegs(source.frames, limits, source.check)
        height, width = headers[0].height, headers[0].width
        sampling = sample_frame_list(len(source.frames), options, limits, rules=rules)
        rate = float(options.fps or rules.fps)
        if len(source.frames) / rate > limits.max_video_seconds:
            raise ChatError(f"fps: the video lasts more than the allowed {limits.max_video_seconds:.0f} s")
        effort = sum(picture_effort(source.frames[i], headers[i].pixels) for i in set(sampling.indices))
    else:
        info = probe(source.data, limits, source.check)
        height, width, rate = info.height, info.width, info.fps
        sampling = sample_frames(info.n_frames, info.fps, options, limits, rules=rules)
        effort = count_effort(info, sampling.indices, limits)
    frame = FrameSize(
        height=height, width=width, n=len(sampling.indices), shown=sampling.n, options=options, limits=limits,
        rules=rules, factor=factor,
    )  # fmt: skip
    size = frame.find()
    return VideoPlan(
        indices=sampling.indices, seconds_per_grid=sampling.seconds_per_grid, fps=rate, size=size, info=info,
        frame=frame, effort=effort,
    )  # fmt: skip


def plan_single_frames(
    source: Source, limits: MediaConfig, *, side: int, usual: int, rate_of_list: float = FPS
) -> VideoPlan:
    """Frames of `side` x `side` pixels, each a temporal grid, from the middles of equal parts; of a list all.

    usual: how many, where the request does not say. Raises ChatError for no video or above the limits.
    """
    options, info = source.options, None
    most = min(limits.max_frames, limits.max_video_pixels * FRAME_FACTOR // side**2)
    if source.frames:
        headers = probe_jpegs(source.frames, limits, source.check)
        n, rate = len(headers), float(options.fps or rate_of_list)
        if n > limits.max_frames:
            raise ChatError(f"a list of {n} frames cannot be served, it must have 1 to {limits.max_frames}")
        if n / rate > limits.max_video_seconds:
            raise ChatError(f"fps: the video lasts more than the allowed {limits.max_video_seconds:.0f} s")
        of_list = msgspec.structs.replace(options, fps=None)  # which is the rate that they were taken at
        indices = sample_middles(n, rate, of_list, most, usual=n)
        effort = sum(picture_effort(source.frames[i], headers[i].pixels) for i in indices)
    else:
        info = probe(source.data, limits, source.check)
        n, rate = info.n_frames, info.fps
        indices = sample_middles(n, rate, options, most, usual=usual)
        effort = count_effort(info, indices, limits)
    return VideoPlan(
        indices=indices, seconds_per_grid=n / rate / len(indices), fps=rate, size=(side, side), info=info, per_grid=1,
        effort=effort,
    )  # fmt: skip


def read_video(source: Source, plan: VideoPlan, limits: MediaConfig) -> np.ndarray:
    """uint8 [n, height, width, 3]: the frames of the plan, upright and resized. Raises ChatError when none decodes.

    A frame of a file that does not decode shows the one before, else the first that does; a damaged end is left out.
    """
    if plan.info is None:
        return frames_from_jpegs(source.frames, plan.indices, plan.size, limits, source.check)
    # Frames may grow in mid-file, which no header tells: the plan's cost and what the bytes allow bound them.
    most = plan.effort + allowed_effort(len(source.data), limits, films=len(source.data))
    frames, kept = read_frames(source.data, plan.info, plan.indices, plan.size, limits, source.check, max_effort=most)
    return frames if len(kept) == len(plan.indices) else _bridged(frames, kept, plan)


def video_patches(frames: np.ndarray, *, patch: int, merge: int, per_grid: int = FRAME_FACTOR) -> np.ndarray:
    """uint8 [n, height, width, 3] -> [n/per_grid * h * w, 3 * per_grid * patch * patch], h and w in patches.

    Rows are in the order (t, h', w', merge, merge), columns are (channel, frame, y, x).
    """
    n, height, width, _ = frames.shape
    t, rows, columns = n // per_grid, height // (patch * merge), width // (patch * merge)
    # One row of one patch is one item of `patch` bytes, so that numpy moves it whole.
    line = np.dtype(f"V{patch}")
    out = np.empty((t, rows, columns, merge, merge, 3, per_grid, patch), line)
    for channel in range(3):
        plane = np.ascontiguousarray(frames[..., channel])  # [n, height, width]
        lines = plane.view(line).reshape(t, per_grid, rows, merge, patch, columns, merge)
        out[:, :, :, :, :, channel] = lines.transpose(0, 2, 5, 3, 6, 1, 4)
    return out.view(np.uint8).reshape(t * rows * columns * merge * merge, 3 * per_grid * patch * patch)


def read_frames(
    data: bytes | memoryview, info: VideoInfo, indices: Sequence[int], size: tuple[int, int], limits: MediaConfig,
    check: Check = go_on, *, max_effort: int = UNBOUNDED,
) -> tuple[np.ndarray, tuple[int, ...]]:  # fmt: skip
    """uint8 [n, height, width, 3] of the frames `indices`, resized to `size` (height, width), and which those are.

    `info` is `probe`'s of the same bytes. A frame that does not decode is left out; an index without a picture shows
    the one before. `check` is called between packets. Raises ChatError when none decodes, too many would be, or frames
    that grow on the way take more than `max_effort` pixels of work.
    """
    rows: dict[int, list[int]] = {}
    for row, frame_number in enumerate(indices):
        rows.setdefault(frame_number, []).append(row)
    count_effort(info, indices, limits)
    looked_at = 0  # pixels
    out = np.empty((len(indices), *size, 3), np.uint8)
    missing = set(rows)
    rgb = VideoReformatter()
    # Among threads an error can take the frames around it with it; a second reading without them gets those back.
    for threads in (THREADS, 1):
        video = info.reader if threads == THREADS else open_video(data, limits, threads=threads, check=check)
        if video is not info.reader:
            video.expect(info.index.depth)
        video.restart(check, max_decoded=int((max_effort - looked_at) / video_weight(video.codec).pixel))
        for frame_number, frame in video.pick(info.index, plan_runs(info.index, sorted(missing))):
            check()  # some come out together, after the last packet
            looked_at += frame.width * frame.height
            if looked_at > max_effort:
                raise ChatError(GROWING)
            picture = _to_picture(frame, info, rgb).resized(width=size[1], height=size[0])
            out[rows[frame_number]] = np.asarray(picture)
            missing.discard(frame_number)
        if not missing or not video.errors:
            break
    kept = [row for row, frame_number in enumerate(indices) if frame_number not in missing]
    if not kept:
        raise ChatError(UNDECODABLE)
    return (out[kept] if missing else out), tuple(indices[row] for row in kept)


def count_effort(info: VideoInfo, indices: Sequence[int], limits: MediaConfig) -> int:
    """Units of work to read these frames. Raises ChatError where too many would be decoded for them."""
    pixels = info.width * info.height
    runs = plan_runs(info.index, indices)
    decoded = sum(run.stop - run.start + 1 for run in runs)
    most = min(limits.max_decoded_frames, limits.max_decoded_frames * _FULL_HD // pixels)
    if decoded > most:
        raise ChatError(f"{decoded} frames of the video would have to be decoded, at most {most} are allowed")
    if info.reader.studied:
        decoded += min(STUDIED, info.n_frames)
    decoded += info.reader.tried
    nbytes = sum(map(info.reader.nbytes, runs))
    return video_effort(info.reader.codec, pixels, looked_at=len(set(indices)), decoded=decoded, nbytes=nbytes)


# ---- a video that is a list of pictures


def probe_jpegs(pictures: Sequence[bytes], limits: MediaConfig, check: Check = go_on) -> tuple[ImageHeader, ...]:
    """The header of each encoded picture. Raises ChatError for any bad one. `check` is called between them."""
    headers = []
    for i, data in enumerate(pictures):
        check()
        with in_frame(i):
            headers.append(read_header(data, max_source_pixels=most_pixels(limits)))
    return tuple(headers)


def frames_from_jpegs(
    pictures: Sequence[bytes], indices: Sequence[int], size: tuple[int, int], limits: MediaConfig, check: Check = go_on
) -> np.ndarray:
    """uint8 [n, height, width, 3] of `indices` at `size` (height, width); any image format. Raises ChatError."""
    out = np.empty((len(indices), *size, 3), np.uint8)
    done: dict[int, int] = {}
    for row, i in enumerate(indices):
        if i in done:
            out[row] = out[done[i]]
            continue
        with in_frame(i):
            check()  # one without a block of pixels may never be asked for
            picture = decode(pictures[i], max_source_pixels=most_pixels(limits), check=check)
            out[row] = np.asarray(picture.resized(width=size[1], height=size[0]))
        done[i] = row
    return out


# ---- details


def _bridged(frames: np.ndarray, kept: Sequence[int], plan: VideoPlan) -> np.ndarray:
    """The frames that decoded, each shown until the next one, up to the last of them."""
    decoded = set(kept)
    rows = [row for row, index in enumerate(plan.indices) if index in decoded]
    n = -(-(rows[-1] + 1) // plan.per_grid) * plan.per_grid
    shown = np.searchsorted(rows, np.arange(n), side="right") - 1
    return frames[np.maximum(shown, 0)]


def _to_picture(frame: VideoFrame, info: VideoInfo, rgb: VideoReformatter) -> Picture:
    """A decoded frame, upright; transparency will lie on white, as in still images. Raises ChatError."""
    has_alpha = any(component.is_alpha for component in frame.format.components)
    pixels = "rgba" if has_alpha else "rgb24"
    try:
        image = Image.fromarray(rgb.reformat(frame, format=pixels).to_ndarray())
    except av.FFmpegError as error:
        raise_if_memory(error)
        raise ChatError(f"the pixels of the video ({frame.format.name}) cannot be read") from None
    if info.mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return Picture(image=image.transpose(_TURNS[info.rotation]) if info.rotation else image)
