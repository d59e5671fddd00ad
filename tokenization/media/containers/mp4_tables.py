"""The tables of an MP4 may claim no more than its bytes hold: checked before a library allocates for them.

Boxes are found exactly where FFmpeg's demuxer finds them (libavformat/mov.c of FFmpeg 8): those that it skips are
skipped, and those that it reads in an odd place count.
"""

import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tokenization.cancel import Check
from tokenization.chat.errors import ChatError

SLACK = 1 << 16  # samples that any file may claim: 2.6 MB
EDIT_SLACK = 1 << 20  # samples that the edit lists of any file may name
MOST_TRACKS = 1000  # FFmpeg makes no more streams of a file, and says only that it lacks memory
_MOST_CHAPTERS = 1 << 13  # for each of a further track all that there are are looked through
_MOST_PROPERTIES = 1 << 14  # bytes of the properties of still pictures: each may be read once for every byte
_BYTES_PER_BOX = 32  # of which a file has at most so many; a fragment of one frame has 7 boxes
_FEW_BOXES = 1 << 12
_DEPTH = 12  # the demuxer refuses more than 10
_LEAST_FRAME = 160  # samples of a frame of sound in QuickTime's old form, from which the demuxer reads them singly

_FIRST = frozenset(
    (b"ftyp", b"styp", b"moov", b"mdat", b"moof", b"sidx", b"free", b"skip", b"wide", b"pnot", b"udta", b"uuid",
     b"junk", b"pict", b"prfl")
)  # fmt: skip
_CONTAINERS = frozenset(
    (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"mvex", b"moof", b"traf", b"udta", b"dinf", b"tref",
     b"sinf", b"schi", b"ilst", b"wave")
)  # fmt: skip
# Where the number of entries stands, and the bytes of one. A sample of a `trun` has 4 for each of its flags.
_TABLES = {
    b"stts": (4, 8), b"ctts": (4, 8), b"stsc": (4, 12), b"stco": (4, 4), b"co64": (4, 8), b"stss": (4, 4),
    b"stps": (4, 4), b"senc": (4, 0),
}  # fmt: skip
# Of tracks; others are of their data, or of tags.
_HANDLERS = frozenset((b"soun", b"vide", b"m1a ", b"subp", b"clcp", b"text", b"subt", b"sbtl"))
# Inside descriptions of a codec or a picture: there they are read over and over, and no muxer writes them.
_HIDDEN = re.compile(b"stsz|stz2|trun|sbgp|sidx|saiz|iinf|" + b"|".join(_TABLES))


def is_iso(data: memoryview) -> bool:
    """Whether a file is MP4, QuickTime or of that kind: no other file may be read as one."""
    at = 0
    for _ in range(8):
        if at + 8 > len(data):
            break
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind in _FIRST:
            return True
        if size < 8:
            break
        at += size
    return False


def check_tables(data: memoryview, check: Check) -> None:
    """Raises ChatError where tables claim more samples than there are bytes. `check` is called between boxes."""
    walk = _BoxWalk(data, check)
    walk.boxes(data, 0, len(data), 0)
    walk.end_track()
    walk.end_chapters()


@dataclass(slots=True)
class _Track:
    samples: int = 0  # as its table of sizes claims
    handlers: set[bytes] = field(default_factory=set)
    steps: list[tuple[int, int]] = field(default_factory=list)  # (entries, first duration) of each table of times
    runs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # (first chunk, samples in a chunk)
    chunks: int = 0
    edits: int = 0
    numbers: set[int] = field(default_factory=set)  # its own, as headers say

    @property
    def entries(self) -> int:
        """What the demuxer makes of it: an entry for each sample, or for pieces of the chunks of a plain sound."""
        plain = bool(self.steps) and all(step == (1, 1) for step in self.steps)
        if not plain:
            return self.samples
        pieces = max((self._pieces(first, samples) for first, samples in self.runs), default=0)
        return pieces if self.handlers == {b"soun"} else max(pieces, self.samples)

    def _pieces(self, first: np.ndarray, samples: np.ndarray) -> int:
        chunks = np.diff(first, append=self.chunks + 1)
        # Out of order: the demuxer mends it in some way, by as many chunks as there are.
        chunks = np.where(chunks < 0, self.chunks, np.minimum(chunks, self.chunks))
        return int((chunks.astype(np.float64) * (samples // _LEAST_FRAME + 1)).sum())


class _BoxWalk:
    def __init__(self, data: memoryview, check: Check) -> None:
        self._check = check
        self._nbytes = len(data)
        self._left = len(data) // _BYTES_PER_BOX + _FEW_BOXES  # boxes
        self._claimed = self._edited = self._tracks = self._fragments = self._properties = self._unpackable = 0
        self._track = _Track()
        self._fragment = 0  # number of the track that it is of
        self._samples: Counter[int] = Counter()  # by number of a track
        self._chapters: list[int] = []  # numbers of tracks

    def boxes(self, data: memoryview, at: int, end: int, depth: int) -> None:
        """All of data[at:end], whatever they hold."""
        for kind, begin, stop in self._split(data, at, end):
            if kind == b"trak":
                self.end_track()
            self._fragments += kind == b"moof"
            if kind in _CONTAINERS:
                self._inside(data, begin, stop, depth)
            elif kind in (b"free", b"skip", b"hoov"):
                if bytes(data[begin + 4 : begin + 8]) in (b"mvhd", b"cmov"):  # some writers hide the header there
                    self._inside(data, begin, stop, depth)
            elif kind == b"meta":
                self._inside(data, _children_of_meta(data, begin, stop), stop, depth)
            elif kind == b"iref":
                self._inside(data, begin + 4, stop, depth)
            elif kind == b"cmov":
                header = self._unpacked(data[begin:stop])
                self._inside(header, 0, len(header), depth)
            elif kind in (b"stsd", b"iprp"):
                self._described(kind, data[begin:stop])
            elif kind in (b"tkhd", b"tfhd", b"chap"):
                self._numbered(kind, data[begin:stop])
            else:
                self._table(kind, data[begin:stop])

    def end_track(self) -> None:
        """What the boxes since the last one claim together."""
        track, self._track = self._track, _Track()
        self._tracks += 1  # beside them: what stands before the first
        if self._tracks > MOST_TRACKS + 1:
            raise too_many_tracks()
        self._claim(track.entries)
        self._samples.update(dict.fromkeys(track.numbers, track.entries))
        if track.edits > 1:
            self._edited += track.edits * track.entries
        if self._edited > self._nbytes + EDIT_SLACK:
            raise ChatError("the edit lists of the file name more samples than its bytes hold")
        if self._fragments * self._tracks > self._nbytes + SLACK:
            raise ChatError("the file has more tracks and fragments than its bytes hold")

    def end_chapters(self) -> None:
        """What all tracks claim that others name as their chapters."""
        if len(self._chapters) > 1 and sum(self._samples[number] for number in self._chapters) > _MOST_CHAPTERS:
            raise ChatError("the file has more chapters than any file needs")

    # ---- details

    def _inside(self, data: memoryview, at: int, end: int, depth: int) -> None:
        if depth < _DEPTH:
            self.boxes(data, at, end, depth + 1)

    def _split(self, data: memoryview, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """(type, where its content begins, where it ends) of each box in data[at:end]; no size is trusted."""
        while at + 8 <= end:
            self._left -= 1
            if self._left < 0:
                raise ChatError("the file has more boxes than its bytes hold")
            if self._left % 1024 == 0:
                self._check()
            size, kind = struct.unpack_from(">I4s", data, at)
            begin = at + 8
            if size == 1 and at + 16 <= end:
                (size,) = struct.unpack_from(">Q", data, begin)
                begin += 8
            if size == 0:
                size = end - at
            if size < begin - at:
                return
            at = min(at + size, end)
            yield kind, begin, at

    def _unpacked(self, box: memoryview) -> memoryview:
        """The header of an old QuickTime file, which is compressed."""
        if len(box) < 24 or bytes(box[4:12]) != b"dcomzlib" or bytes(box[16:20]) != b"cmvd":
            return memoryview(b"")
        size = _number(box, 20)  # the demuxer unpacks as much, and refuses a header that is longer
        self._unpackable += size
        if self._unpackable > self._nbytes + SLACK:
            raise ChatError("the compressed headers of the file claim more than its bytes hold")
        try:
            return memoryview(zlib.decompressobj().decompress(box[24:], max(size, 1)))
        except zlib.error:
            return memoryview(b"")

    def _described(self, kind: bytes, box: memoryview) -> None:
        if kind == b"iprp":
            self._properties += len(box)
        if self._properties > _MOST_PROPERTIES or _HIDDEN.search(box):
            raise ChatError("the file describes its codecs or pictures in a way that the server does not read")

    def _numbered(self, kind: bytes, box: memoryview) -> None:
        """Boxes that name tracks by their numbers."""
        if kind == b"tkhd":
            self._track.numbers.add(_number(box, 20 if box[:1] and box[0] == 1 else 12))
        elif kind == b"tfhd":
            self._fragment = _number(box, 4)
        else:
            self._chapters += np.frombuffer(box[: len(box) // 4 * 4], ">u4").tolist()

    def _table(self, kind: bytes, box: memoryview) -> None:
        track = self._track
        if kind == b"hdlr" and bytes(box[8:12]) in _HANDLERS:
            track.handlers.add(bytes(box[8:12]))
        elif kind == b"elst":
            track.edits = max(track.edits, len(box) // 12)
        elif kind in (b"stsz", b"stz2"):
            self._sizes(kind, box)
        elif kind == b"trun":
            flags = _number(box, 0)
            fields = 4 * bin(flags & 0xF00).count("1")
            n = self._count(kind, box, 4, fields)
            self._claim(n)
            self._samples[self._fragment] += n
        elif kind == b"iinf":  # the number of its boxes has two bytes in an old one
            if 8 * (_number(box, 4) >> (0 if _number(box, 0) >> 24 else 16)) > len(box):
                raise _too_many(kind, _number(box, 4))
        elif kind == b"saiz":
            self._claim(_number(box, 5 + 8 * (_number(box, 0) & 1)))
        elif kind == b"sidx":
            self._fragments += _number(box, 22 if not box[:1] or box[0] == 0 else 30) >> 16
        elif kind == b"sbgp" and bytes(box[4:8]) == b"sync":
            at = 8 if box[0] == 0 else 12
            if n := self._count(kind, box, at, 8):
                self._claim(int(np.frombuffer(box, ">u4", count=2 * n, offset=at + 4)[::2].sum(dtype=np.int64)))
        elif kind in _TABLES:
            at, nbytes = _TABLES[kind]
            self._note(kind, box, self._count(kind, box, at, nbytes))

    def _note(self, kind: bytes, box: memoryview, n: int) -> None:
        """n: entries that the box claims and holds."""
        track = self._track
        if kind == b"stts":
            track.steps.append((n, _number(box, 12)))
        elif kind == b"stsc" and n:
            rows = np.frombuffer(box, ">u4", count=3 * n, offset=8).reshape(n, 3)
            track.runs.append((rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)))
        elif kind in (b"stco", b"co64"):
            track.chunks = max(track.chunks, n)
        elif kind == b"senc":
            self._claim(n)

    def _sizes(self, kind: bytes, box: memoryview) -> None:
        n, size = _number(box, 8), _number(box, 4)
        if kind == b"stz2" or size == 0:
            bits = size & 0xFF if kind == b"stz2" else 32
            if n * bits > 8 * (len(box) - 12):
                raise _too_many(kind, n)
        self._track.samples = max(self._track.samples, n)

    def _count(self, kind: bytes, box: memoryview, at: int, nbytes: int) -> int:
        """The entries that a box claims at that place: so many bytes each, behind it. Raises ChatError."""
        n = _number(box, at)
        if n and at + 4 + n * nbytes > len(box):
            raise _too_many(kind, n)
        return n

    def _claim(self, samples: int) -> None:
        self._claimed += samples
        if self._claimed > self._nbytes + SLACK:
            raise ChatError(f"the file claims {self._claimed} samples, more than its {self._nbytes} bytes hold")


def too_many_tracks() -> ChatError:
    return ChatError(f"the file has more than {MOST_TRACKS} tracks")


def _number(box: memoryview, at: int) -> int:
    """Four bytes; what is not there is 0, as the demuxer reads it."""
    return int.from_bytes(bytes(box[at : at + 4]).ljust(4, b"\0"), "big")


def _too_many(kind: bytes, n: int) -> ChatError:
    return ChatError(f"the table {kind.decode()} of the file claims {n} entries and does not hold them")


def _children_of_meta(data: memoryview, begin: int, end: int) -> int:
    """Where its boxes begin: version and flags stand before them, or do not. Without a handler it is passed over."""
    words = np.frombuffer(data[begin:end], np.uint32, count=(end - begin) // 4)
    found = words == np.frombuffer(b"hdlr", np.uint32)
    return max(begin, begin + 4 * int(found.argmax()) - 4) if found.any() else end
