"""Tracks of Matroska or WebM with compressed frames are refused before FFmpeg unpacks them.

FFmpeg unpacks every frame of every track while it opens a file. The elements are those of RFC 9559 (ContentEncodings),
written as RFC 8794 has it. A list counts wherever it stands: FFmpeg follows an index, and after damage
continues at the next list. Tags and chapters are counted with tracks: FFmpeg takes n x n steps for n of them.
"""

import re
from itertools import chain

from tokenization.cancel import Check
from tokenization.chat.errors import ChatError
from tokenization.media.containers.mp4_tables import MOST_TRACKS, too_many_tracks
from tokenization.media.containers.tags import check_texts

MATROSKA = b"\x1aE\xdf\xa3"
MOST_STRIPPED = 16  # bytes that stand before each frame of a track: those of a codec's sync word are one to four
_MOST_ELEMENTS = 1 << 14  # of all lists: FFmpeg looks through those of tags and chapters for each of them
_DEEPEST = 16  # levels, as in FFmpeg
# Of tracks, tags and chapters. Each alone is found ten times as fast as all at once.
_LISTS = tuple(map(re.compile, (rb"\x16\x54\xae\x6b", rb"\x12\x54\xc3\x67", rb"\x10\x43\xa7\x70")))
_ENTRY, _ENCODINGS, _ENCODING, _COMPRESSION = 0xAE, 0x6D80, 0x6240, 0x5034
_TAG, _SIMPLE_TAG, _EDITION, _CHAPTER, _PRIVATE = 0x7373, 0x67C8, 0x45B9, 0xB6, 0x63A2
_HOLDERS = frozenset((_ENTRY, _ENCODINGS, _ENCODING, _COMPRESSION, _TAG, _SIMPLE_TAG, _EDITION, _CHAPTER))
_ALGORITHM, _SETTINGS = 0x4254, 0x4255
_STRIPPED = 3  # the algorithm that only puts the same bytes before each frame; without a word of it, it is zlib


def check_tracks(data: memoryview, check: Check) -> None:
    """Raise ChatError for compressed or encrypted frames, and for more than MOST_STRIPPED bytes before each."""
    walk = _ElementWalk(data, check)
    for found in chain.from_iterable(name.finditer(data) for name in _LISTS):
        walk.elements(*walk.content(found.end(), len(data)))


class _ElementWalk:
    def __init__(self, data: memoryview, check: Check) -> None:
        self._data = data
        self._check = check
        self._left = _MOST_ELEMENTS
        self._tracks = 0
        self._private = 0  # bytes of headers of codecs: lists inside them might name the same ones over and over

    def content(self, at: int, end: int) -> tuple[int, int]:
        """Where the content of an element begins and ends whose size stands at `at`; (end, end) for no size."""
        size, length = self._number(at, end, keeps_mark=False)
        if not length:
            return end, end
        unknown = size == (1 << 7 * length) - 1
        return at + length, end if unknown else min(end, at + length + size)

    def elements(self, at: int, end: int, depth: int = 0) -> set[int]:
        """The ids of the elements between, and of those inside holders."""
        seen: set[int] = set()
        while at < end:
            self._left -= 1
            if self._left < 0 or depth > _DEEPEST:
                raise _too_many_elements()
            if self._left % 256 == 0:
                self._check()
            kind, length = self._number(at, min(end, at + 4), keeps_mark=True)
            if not length:
                break  # what follows is no element, and ends the list for FFmpeg, too
            begins, at = self.content(at + length, end)
            seen.add(kind)
            self._tracks += kind == _ENTRY
            if self._tracks > MOST_TRACKS:
                raise too_many_tracks()
            if kind in _HOLDERS:
                inner = self.elements(begins, at, depth + 1)
                seen |= inner
                if kind == _ENCODING and _ALGORITHM not in inner:
                    raise _packed()
            elif kind == _ALGORITHM and int.from_bytes(self._data[begins:at][:8], "big") != _STRIPPED:
                raise _packed()
            elif kind == _SETTINGS and at - begins > MOST_STRIPPED:
                raise ChatError(f"a track of the file puts {at - begins} bytes before each frame: remux it without")
            elif kind == _PRIVATE:  # of FLAC: its whole header
                self._private += at - begins
                if self._private > len(self._data):
                    raise _too_many_elements()
                check_texts(bytes(self._data[begins:at]))
        return seen

    def _number(self, at: int, end: int, *, keeps_mark: bool) -> tuple[int, int]:
        """A number of variable length and its bytes; 0 bytes for none. An id keeps the bit that marks its length."""
        if at >= end or not self._data[at]:
            return 0, 0
        length = 9 - self._data[at].bit_length()
        if at + length > end:
            return 0, 0
        value = int.from_bytes(self._data[at : at + length], "big")
        return value if keeps_mark else value - (1 << 7 * length), length


def _too_many_elements() -> ChatError:
    return ChatError("the file has more elements that describe its tracks, tags or chapters than any needs")


def _packed() -> ChatError:
    return ChatError(
        "frames of a track are compressed or encrypted in the container, which the server does not read: remux the "
        "file without (mkvmerge --compression -1:none)"
    )
