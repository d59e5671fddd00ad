"""One medium fetched and not yet opened: bytes, or the bytes of each picture of a video."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pybase64

from configs.serve import MediaConfig
from tokenization.cancel import Check, go_on
from tokenization.chat.errors import ChatError, MediaError
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Kind, Media
from tokenization.media.fetch import fetch
from tokenization.media.frame_sampling import VideoCaps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    kind: Kind
    param: str  # the field it came from: what errors name
    data: bytes  # as encoded; empty where there are frames
    frames: tuple[bytes, ...] = ()  # of a video that is a list of pictures, each as encoded
    options: MediaOptions = MediaOptions()
    of_video: bool = False  # the sound in the bytes of a video
    check: Check = field(default=go_on, repr=False)  # whether it is to be read on; raises Cancelled

    @property
    def nbytes(self) -> int:
        """As encoded."""
        return len(self.data) + sum(map(len, self.frames))


def tracks(source: Source) -> tuple[Source, ...]:
    """The medium, then the sound of a video where the client wants it. Raises ChatError for the sound of pictures."""
    if source.kind != "video" or not source.options.use_audio:
        return (source,)
    if source.frames:
        raise ChatError("use_audio_in_video: a list of pictures has no sound", source.param)
    return source, replace(source, kind="audio", of_video=True)


def fetch_source(media: Media, limits: MediaConfig, check: Check = go_on) -> Source:
    """A file, a data URL, a list of either, or `data:video/jpeg;base64,a,b,c`. Raises ChatError, naming the medium.

    Whoever reads what was fetched calls `check` on the way, and so does this between the pictures of a list.
    """
    frames: tuple[bytes, ...] = ()
    data = b""
    pictures = _jpeg_payload(media) if media.kind == "video" else None
    if pictures is not None:
        _check_size(len(pictures) // 4 * 3, limits, media.param)
        with video_errors(media.param):
            frames = tuple(split_jpegs(pictures, video_caps(limits)))
    elif media.frames:
        frames = _fetch_frames(media, limits, check)
    else:
        data = fetch(media.source, roots=limits.roots, max_bytes=limits.max_file_bytes, param=media.param)
    return Source(kind=media.kind, param=media.param, data=data, frames=frames, options=media.options, check=check)


def video_caps(limits: MediaConfig) -> VideoCaps:
    return VideoCaps(
        max_frames=limits.max_frames,
        max_duration_s=limits.max_video_seconds,
        max_source_pixels=min(limits.max_source_pixels, VideoCaps().max_source_pixels),
        max_decoded_frames=limits.max_decoded_frames,
        max_decoded_pixels=limits.max_decoded_frames * 1920 * 1080,
        # A frame is an image too: the server's cap on those holds for it.
        max_pixels=limits.max_pixels,
        max_total_pixels=limits.max_video_pixels,
    )


@contextmanager
def video_errors(param: str) -> Iterator[None]:
    """A MediaError as a ChatError of the field `param`; the message names the option that is wrong."""
    try:
        yield
    except MediaError as error:
        named = error.param is None or error.param in error.message
        raise ChatError(error.message if named else f"{error.param}: {error.message}", param) from None


def _jpeg_payload(media: Media) -> str | None:
    """What follows `data:video/jpeg;base64,`; None for every other source."""
    head, comma, _ = media.source[:64].partition(",")
    head = head.lower()
    if not comma or not head.startswith("data:video/jpeg") or not head.endswith(";base64"):
        return None
    return media.source[len(head) + 1 :]


def _fetch_frames(media: Media, limits: MediaConfig, check: Check) -> tuple[bytes, ...]:
    n = len(media.frames)
    if n > limits.max_frames:
        raise ChatError(f"the video has {n} frames, at most {limits.max_frames} are allowed", media.param)
    frames: list[bytes] = []
    total = 0
    for frame in media.frames:
        check()
        frames.append(fetch(frame, roots=limits.roots, max_bytes=limits.max_file_bytes, param=media.param))
        total += len(frames[-1])
        _check_size(total, limits, media.param)
    return tuple(frames)


def _check_size(nbytes: int, limits: MediaConfig, param: str) -> None:
    if nbytes > limits.max_file_bytes:
        raise ChatError(f"the frames together are larger than the allowed {limits.max_file_bytes} bytes", param)


def split_jpegs(payload: str, caps: VideoCaps) -> list[bytes]:
    """Pictures in base64 with commas between them, counted before one is decoded. Raises MediaError."""
    n = payload.count(",") + 1
    if n > caps.max_frames:
        raise MediaError(f"the video has {n} frames, at most {caps.max_frames} are allowed")
    try:
        return [pybase64.b64decode(piece, validate=True) for piece in payload.split(",")]
    except ValueError:
        raise MediaError("a frame of the video is not valid base64") from None
