"""The bytes of a video become upright RGB frames of one size; only packets that lead to them are decoded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from PIL import Image

from tokenization.cancel import Check, go_on
from tokenization.chat.errors import ChatError
from tokenization.media.containers.packet_index import plan_runs
from tokenization.media.effort import STUDIED, video_effort, video_weight
from tokenization.media.frame_sampling import UNBOUNDED, VideoCaps
from tokenization.media.image import ImageHeader, Picture, decode, read_header
from tokenization.media.video_decoder import GROWING, THREADS, UNDECODABLE, open_video
from tokenization.media.video_plan import VideoInfo
from tokenization.worker_memory import raise_if_memory

_TURNS = {90: Image.Transpose.ROTATE_90, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_270}


def read_frames(
    data: bytes | memoryview, info: VideoInfo, indices: Sequence[int], size: tuple[int, int], caps: VideoCaps,
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
    count_effort(info, indices, caps)
    looked_at = 0  # pixels
    out = np.empty((len(indices), *size, 3), np.uint8)
    missing = set(rows)
    rgb = VideoReformatter()
    # Among threads an error can take the frames around it with it; a second reading without them gets those back.
    for threads in (THREADS, 1):
        video = info.reader if threads == THREADS else open_video(data, caps, threads=threads, check=check)
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


def count_effort(info: VideoInfo, indices: Sequence[int], caps: VideoCaps) -> int:
    """Units of work to read these frames. Raises ChatError where too many would be decoded for them."""
    pixels = info.width * info.height
    runs = plan_runs(info.index, indices)
    decoded = sum(run.stop - run.start + 1 for run in runs)
    most = min(caps.max_decoded_frames, caps.max_decoded_pixels // pixels)
    if decoded > most:
        raise ChatError(f"{decoded} frames of the video would have to be decoded, at most {most} are allowed")
    if info.reader.studied:
        decoded += min(STUDIED, info.n_frames)
    nbytes = sum(map(info.reader.nbytes, runs))
    return video_effort(info.reader.codec, pixels, looked_at=len(set(indices)), decoded=decoded, nbytes=nbytes)


# ---- a video that is a list of pictures


def probe_jpegs(pictures: Sequence[bytes], caps: VideoCaps) -> tuple[ImageHeader, ...]:
    """The header of each encoded picture. Raises ChatError for any bad one."""
    headers = []
    for i, data in enumerate(pictures):
        with _picture_errors(i):
            headers.append(read_header(data, max_source_pixels=caps.max_source_pixels))
    return tuple(headers)


def frames_from_jpegs(
    pictures: Sequence[bytes], indices: Sequence[int], size: tuple[int, int], caps: VideoCaps, check: Check = go_on
) -> np.ndarray:
    """uint8 [n, height, width, 3] of `indices` at `size` (height, width); any image format. Raises ChatError."""
    out = np.empty((len(indices), *size, 3), np.uint8)
    done: dict[int, int] = {}
    for row, i in enumerate(indices):
        if i in done:
            out[row] = out[done[i]]
            continue
        with _picture_errors(i):
            check()  # one without a block of pixels may never be asked for
            picture = decode(pictures[i], max_source_pixels=caps.max_source_pixels, check=check)
            out[row] = np.asarray(picture.resized(width=size[1], height=size[0]))
        done[i] = row
    return out


@contextmanager
def _picture_errors(i: int) -> Iterator[None]:
    try:
        yield
    except ChatError as error:
        raise ChatError(f"frame {i + 1} of the video: {error.message}") from None


# ---- details


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
