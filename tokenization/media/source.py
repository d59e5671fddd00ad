"""One medium, fetched and not yet opened: its bytes, or those of each picture of a video."""

from dataclasses import dataclass, field, replace

import pybase64

from configs.serve import MediaConfig
from tokenization.cancel import Check, go_on
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Kind, Media
from tokenization.media.fetch import fetch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    kind: Kind
    param: str  # the field it came from: what errors name
    data: bytes  # as encoded; empty where there are frames
    frames: tuple[bytes, ...] = ()  # of a video that is a list of pictures, each as encoded
    options: MediaOptions = MediaOptions()
    of_video: bool = False  # the sound in the bytes of a video
    check: Check = field(default=go_on, repr=False)  # whether it is to be read on; raises Cancelled


def tracks(source: Source) -> tuple[Source, ...]:
    """The medium, then the sound of a video where the client wants it. Raises ChatError for the sound of pictures."""
    if source.kind != "video" or not source.options.use_audio:
        return (source,)
    if source.frames:
        raise ChatError("use_audio_in_video: a list of pictures has no sound")
    return source, replace(source, kind="audio", of_video=True)


def fetch_source(media: Media, limits: MediaConfig, check: Check = go_on) -> Source:
    """A file, a data URL, a list of either, or `data:video/jpeg;base64,a,b,c`. Raises ChatError.

    Whoever reads what was fetched calls `check` on the way, and so does this between the pictures of a list.
    """
    frames: tuple[bytes, ...] = ()
    data = b""
    pictures = _jpeg_payload(media) if media.kind == "video" else None
    if pictures is not None:
        _check_size(len(pictures) // 4 * 3, limits)
        frames = tuple(split_jpegs(pictures, limits.max_frames))
    elif media.frames:
        frames = _fetch_frames(media, limits, check)
    else:
        data = fetch(media.source, roots=limits.roots, max_bytes=limits.max_file_bytes)
    return Source(kind=media.kind, param=media.param, data=data, frames=frames, options=media.options, check=check)


def _jpeg_payload(media: Media) -> str | None:
    """What follows `data:video/jpeg;base64,`; None for every other source."""
    head, comma, _ = media.source[:64].partition(",")
    head = head.lower()
    if not comma or not head.startswith("data:video/jpeg") or not head.endswith(";base64"):
        return None
    return media.source[len(head) + 1 :]


def _fetch_frames(media: Media, limits: MediaConfig, check: Check) -> tuple[bytes, ...]:
    _check_count(len(media.frames), limits.max_frames)
    frames: list[bytes] = []
    total = 0
    for frame in media.frames:
        check()
        frames.append(fetch(frame, roots=limits.roots, max_bytes=limits.max_file_bytes))
        total += len(frames[-1])
        _check_size(total, limits)
    return tuple(frames)


def _check_size(nbytes: int, limits: MediaConfig) -> None:
    if nbytes > limits.max_file_bytes:
        raise ChatError(f"the frames together are larger than the allowed {limits.max_file_bytes} bytes")


def _check_count(n: int, most: int) -> None:
    if n > most:
        raise ChatError(f"the video has {n} frames, at most {most} are allowed")


def split_jpegs(payload: str, max_frames: int) -> list[bytes]:
    """Pictures in base64 with commas between them, counted before one is decoded. Raises ChatError."""
    _check_count(payload.count(",") + 1, max_frames)
    try:
        return [pybase64.b64decode(piece, validate=True) for piece in payload.split(",")]
    except ValueError:
        raise ChatError("a frame of the video is not valid base64") from None
