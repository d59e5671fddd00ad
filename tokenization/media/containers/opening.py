"""A container opened by a restrained FFmpeg: no protocols, no format that names other files, no claims beyond bytes."""

import io
from collections.abc import Mapping

import av
from av.container import InputContainer

from tokenization.cancel import Check
from tokenization.media.containers.matroska_tracks import MATROSKA, check_tracks
from tokenization.media.containers.mp4_tables import check_tables, is_iso

_ISO = "mov"  # FFmpeg's demuxer of MP4, QuickTime and their kin
_BUFFER = 1 << 20  # bytes that are read at once


def open_container(data: bytes | memoryview, formats: str, options: Mapping[str, str], check: Check) -> InputContainer:
    """`formats`: demuxers that may run, by FFmpeg's names. Raises MediaError for tables and tracks, and av.FFmpegError.

    `check` is called between the boxes of an MP4, and the elements of a Matroska file.
    """
    # What is not looked at here must not be read as an MP4 there: FFmpeg goes by content, too.
    iso = is_iso(memoryview(data))
    if iso:
        check_tables(memoryview(data), check)
    elif bytes(data[:4]) == MATROSKA:
        check_tracks(memoryview(data), check)
    allowed = ",".join(name for name in formats.split(",") if (name == _ISO) == iso)
    return av.open(
        io.BytesIO(data),
        mode="r",
        format=_ISO if iso else None,
        options={"format_whitelist": allowed, "protocol_whitelist": "", **options},
        metadata_errors="replace",
        buffer_size=_BUFFER,
    )


def says_times(data: bytes | memoryview) -> bool:
    """Whether a container says when each packet is shown, so that nothing need be decoded to know it."""
    return is_iso(memoryview(data)) or bytes(data[:4]) == MATROSKA
