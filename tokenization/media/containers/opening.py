"""Opens a container with a restricted FFmpeg: no protocols, no playlists, no headers that claim too much."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from tokenization.cancel import Check, CheckedFile
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Kind
from tokenization.media.containers.matroska_tracks import MATROSKA, check_tracks
from tokenization.media.containers.mp4_tables import check_tables, is_iso
from tokenization.media.containers.signatures import meant_as
from tokenization.media.containers.tags import check_comments, without_tags
from tokenization.worker_memory import raise_if_memory

_Stream = TypeVar("_Stream", AudioStream, VideoStream)

_ISO = "mov"  # FFmpeg's demuxer of MP4, QuickTime and their kin
_BUFFER = 1 << 16  # bytes that are read at once
_MOST_SECONDS = 2.0  # of this thread's processor time, while a file is opened


def open_container(
    data: bytes | memoryview, kind: Kind, formats: str, options: Mapping[str, str], check: Check
) -> InputContainer:
    """kind: what it should hold, for errors. formats: demuxers that may run, by FFmpeg's names.

    Raises ChatError where no demuxer reads it, and for headers that claim more than they hold or take _MOST_SECONDS.
    `check` is called between the boxes of an MP4, the elements of a Matroska file, and reads of 64 KiB, later, too.
    """
    data = without_tags(data)
    # What is not looked at here must not be read as an MP4 there: FFmpeg goes by content, too.
    iso = is_iso(memoryview(data))
    if iso:
        check_tables(memoryview(data), check)
    elif bytes(data[:4]) == MATROSKA:
        check_tracks(memoryview(data), check)
    else:
        check_comments(data, check)
    allowed = ",".join(name for name in formats.split(",") if (name == _ISO) == iso)
    opened, begun = False, time.thread_time()

    def watched() -> None:
        check()
        # A header in n pieces may take n x n steps; no reader of ours knows all tags of all formats.
        if not opened and time.thread_time() - begun > _MOST_SECONDS:
            raise ChatError("the header of the file takes too long to read: remux it without its tags")

    try:
        container = av.open(
            CheckedFile(data, watched),
            mode="r",
            format=_ISO if iso else None,
            options={"format_whitelist": allowed, "protocol_whitelist": "", **options},
            metadata_errors="replace",
            buffer_size=_BUFFER,
        )
    except av.FFmpegError as error:
        raise_if_memory(error)
        what = "sound" if kind == "audio" else kind
        told = f"this is not a {what} that the server reads, or its header is damaged{meant_as(data, kind)}"
        raise ChatError(told) from None
    opened = True
    return container


def read_packets(container: InputContainer, stream: _Stream) -> "Iterator[av.Packet[_Stream]]":
    """Of one stream, in file order. A file that breaks off ends there. Raises MemoryError."""
    try:
        yield from container.demux(stream)
    except (av.FFmpegError, IndexError) as error:  # PyAV has no object for a stream that damage seems to add on the way
        raise_if_memory(error, claims=True)


def default_stream(streams: Sequence[_Stream], what: str, decoders: str) -> _Stream:
    """The default one, else the first; not FFmpeg's own choice, which depends on what it has decoded so far.

    Raises ChatError when there is none that may be decoded.
    """
    if not streams:
        raise ChatError(f"the file holds no {what}")
    found = next((stream for stream in streams if stream.disposition & Disposition.default), streams[0])
    if found.codec_context is None or found.codec_context.name not in decoders.split(","):
        raise ChatError(f"the codec of the {what.split()[0]} is not supported")
    return found


def says_times(data: bytes | memoryview) -> bool:
    """Whether a container says when each packet is shown, so that nothing need be decoded to know it."""
    data = without_tags(data)
    return is_iso(memoryview(data)) or bytes(data[:4]) == MATROSKA
