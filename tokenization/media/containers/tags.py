"""Bounds the tags of sounds that FFmpeg reads in one call.

FFmpeg's dictionary is a list that it searches for each new key: 40,000 keys of 8 bytes take 11 s. Vorbis comments are
read in one call; for tags that it reads piece by piece, `opening.py` bounds the time.
"""

import re

from tokenization.cancel import Check
from tokenization.chat.errors import ChatError

_ID3_OF_CHUNK = re.compile(rb"ID3(?<=[iI][dD]3 .{4}ID3)", re.DOTALL)
_INFO_LIST = re.compile(rb"LIST(?=.{4}INFO)", re.DOTALL)
_SKIPPED = b"JUNK"  # a chunk that readers pass over
_CHUNKED = frozenset((b"RIFF", b"RIFX", b"RF64", b"BW64", b"ON2 ", b"FORM"))  # what WAV, AVI and AIFF begin with
_MOST = 1 << 13  # comments: 0.5 s
_BYTES_PER_COMMENT = 128  # a further one for so many bytes: in sounds and pictures chance looks like one
_MOST_BLOCKS = 1 << 12  # of a FLAC's header: one for each picture, and few others


def without_tags(data: bytes | memoryview) -> bytes | memoryview:
    """The file without ID3v2 tags in front, and with those in chunks of WAV, AVI and AIFF without their name.

    They serve no request, FFmpeg converts ID3 four times, and writes zeros to as much memory as a text in a list of
    INFO claims; and what follows in front is what other rules look at.
    """
    at = 0
    while data[at : at + 3] == b"ID3" and at + 10 <= len(data):
        size = 0
        for seven in data[at + 6 : at + 10]:
            size = size << 7 | seven & 0x7F
        at += 10 + size + 10 * (data[at + 5] >> 4 & 1)  # a footer is like the header
    rest = data[at:] if at else data
    if bytes(rest[:4]) not in _CHUNKED:
        return rest
    return _INFO_LIST.sub(_SKIPPED, _ID3_OF_CHUNK.sub(bytes(3), rest))


def check_comments(data: bytes | memoryview, check: Check) -> None:
    """Raises ChatError for more Vorbis comments than any FLAC or Ogg needs. Others are not looked at."""
    head = bytes(data[:4])
    if head == b"fLaC":
        check_texts(bytes(data[: _end_of_header(data)]))
    elif head == b"OggS":
        check()
        check_texts(bytes(data))


def check_texts(data: bytes) -> None:
    """Raises ChatError where more comments may begin than any file needs.

    Each is its length, which is below 65,536 where there are many, so its upper half is zero; then a name, and "=".
    """
    at = 0
    for _ in range(_MOST + len(data) // _BYTES_PER_COMMENT):
        if (at := data.find(b"\0\0", at)) < 0 or (at := data.find(b"=", at)) < 0:
            return
    raise ChatError("the file has more comments than any file needs: remux it without its tags")


def _end_of_header(data: bytes | memoryview) -> int:
    at = 4
    for _ in range(_MOST_BLOCKS):
        if at + 4 > len(data):
            return len(data)
        last = data[at] & 0x80
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "big")
        if last:
            return at
    raise ChatError("the header of the sound is cut into more blocks than any file needs")
