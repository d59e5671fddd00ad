"""One medium, fetched and not yet opened: its bytes, or those of each picture of a video."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from configs.serve import MediaConfig
from tokenization.cancel import Check, go_on
from tokenization.chat.errors import ChatError, in_frame
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Fetched, Kind, Media
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
    pictures: Sequence[str | Fetched] = media.frames
    source = "" if isinstance(media.source, Fetched) else media.source
    head, comma, _ = source[:64].partition(",")
    kind = head.lower().replace(" ", "")
    joined = bool(comma) and kind.startswith("data:video/jpeg") and kind.endswith(";base64")
    if media.kind != "video" or not (joined or pictures):
        data = fetch(media.source, roots=limits.roots, max_bytes=limits.max_file_bytes)
        return Source(kind=media.kind, param=media.param, data=data, options=media.options, check=check)
    n = source.count(",") if joined else len(pictures)  # before one of them is an object
    if n > limits.max_frames:
        raise ChatError(f"the video has {n} frames, at most {limits.max_frames} are allowed")
    if joined:
        pictures = [f"data:;base64,{piece}" for piece in source.split(",")[1:]]
    frames: list[bytes] = []
    left = limits.max_file_bytes
    for i, picture in enumerate(pictures):
        check()
        with in_frame(i):
            frames.append(fetch(picture, roots=limits.roots, max_bytes=limits.max_file_bytes))
        left -= len(frames[-1])
        if left < 0:
            raise ChatError(f"the frames together are larger than the allowed {limits.max_file_bytes} bytes")
    return Source(
        kind="video", param=media.param, data=b"", frames=tuple(frames), options=media.options, check=check
    )  # fmt: skip
