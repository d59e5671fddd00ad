"""A container opened by a restrained FFmpeg: no protocols, no format that names other files, no claims beyond bytes."""

import time
from collections.abc import Mapping

import av
from av.container import InputContainer

from tokenization.cancel import Check, CheckedFile
from tokenization.chat.errors import ChatError
from tokenization.media.containers.matroska_tracks import MATROSKA, check_tracks
from tokenization.media.containers.mp4_tables import check_tables, is_iso
from tokenization.media.containers.tags import check_comments, without_id3

_ISO = "mov"  # FFmpeg's demuxer of MP4, QuickTime and their kin
_BUFFER = 1 << 16  # bytes that are read at once
_MOST_SECONDS = 2.0  # of this thread's processor time, while a file is opened


def open_container(data: bytes | memoryview, formats: str, options: Mapping[str, str], check: Check) -> InputContainer:
    """`formats`: demuxers that may run, by FFmpeg's names. Raises ChatError for headers that claim more than they hold
    or take _MOST_SECONDS to read, and av.FFmpegError.

    `check` is called between the boxes of an MP4, the elements of a Matroska file, and reads of 64 KiB, later, too.
    """
    data = without_id3(data)
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

    container = av.open(
        CheckedFile(data, watched),
        mode="r",
        format=_ISO if iso else None,
        options={"format_whitelist": allowed, "protocol_whitelist": "", **options},
        metadata_errors="replace",
        buffer_size=_BUFFER,
    )
    opened = True
    return container


def says_times(data: bytes | memoryview) -> bool:
    """Whether a container says when each packet is shown, so that nothing need be decoded to know it."""
    data = without_id3(data)
    return is_iso(memoryview(data)) or bytes(data[:4]) == MATROSKA
