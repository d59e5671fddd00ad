"""Tells the order of H.264's pictures from the headers of their slices (ITU-T H.264, 7.3 and 8.2.1)."""

from dataclasses import dataclass

from tokenization.media.containers.bits import Bits

_SLICE, _KEY_SLICE, _SPS, _PPS = 1, 5, 7, 8  # nal_unit_type
_HIGH = frozenset((44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244))  # profiles that name their chroma
_MOST_UNITS = 64  # of a packet that are looked at: those before its first slice
_MOST_SETS = 288  # parameter sets that are read: as many have numbers
_SLICE_BYTES = 64  # of a slice's header, more than what is read of it
_SET_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Sps:
    colour_planes: bool
    frame_num_bits: int
    order_type: int  # pic_order_cnt_type
    order_bits: int
    frames_only: bool


@dataclass(frozen=True, slots=True)
class PicturePlace:
    """Of the first picture in a packet. Pictures are shown by (period, order)."""

    period: int  # one more with each IDR picture
    order: int  # PicOrderCnt
    second: bool = False  # the second field of a frame whose first one is in the packet before


class PictureOrder:
    """Of one stream; packets are given to `place` in the order of the file."""

    def __init__(self, extradata: bytes | None) -> None:
        """extradata: of the codec's context, an avcC record, or parameter sets behind start codes."""
        self._sps: dict[int, _Sps] = {}
        self._pps: dict[int, int] = {}  # its number -> that of its SPS
        self._sets: dict[bytes, tuple[int, int | _Sps] | None] = {}  # those that were read: muxers repeat them
        self._length_bytes = 0  # of each unit's length; 0: units lie behind start codes
        self._period = self._number = 0
        self._reference = (0, 0)  # PicOrderCntMsb and pic_order_cnt_lsb of the last reference picture
        self._field: tuple[int, int, int] | None = None  # period, frame_num, parity of a first field
        data = extradata or b""
        if data[:1] == b"\1" and len(data) > 6:
            self._length_bytes = (data[4] & 3) + 1
            data = _of_record(data)
        self._first_slice(data, 0)

    def place(self, packet: bytes) -> PicturePlace | None:
        """None where the headers do not tell: they are damaged, or count in pic_order_cnt_type 1."""
        try:
            unit = self._first_slice(packet, self._length_bytes)
            return self._place(unit) if unit else None
        except (ValueError, KeyError):
            return None

    def _first_slice(self, data: bytes, length_bytes: int) -> bytes:
        """The start of the first unit that is a slice; parameter sets on the way are kept. Empty: there is none."""
        at = 0 if length_bytes else data.find(b"\0\0\1") + 3
        for _ in range(_MOST_UNITS):
            if length_bytes:
                size = int.from_bytes(data[at : at + length_bytes], "big")
                at += length_bytes
                if not size:
                    continue  # it has not even a header
            if at < 3 and not length_bytes or at >= len(data):
                break
            kind = data[at] & 31
            # A reference picture always: one that is none has another type (a file of OpenCV's has such a unit).
            if kind == _SLICE or (kind == _KEY_SLICE and data[at] & 0x60):
                return data[at : at + _SLICE_BYTES]
            end = at + size if length_bytes else data.find(b"\0\0\1", at)
            if kind in (_SPS, _PPS):
                self._keep(data[at : min(end if end >= 0 else len(data), at + _SET_BYTES)])
            at = end if length_bytes else end + 3
        return b""

    def _keep(self, unit: bytes) -> None:
        """A parameter set, which holds until another one of its number comes."""
        if unit not in self._sets:
            if len(self._sets) >= _MOST_SETS:
                raise ValueError("too many parameter sets")
            self._sets[unit] = _read_set(unit)
        number, found = self._sets[unit] or (0, None)
        if isinstance(found, _Sps):
            self._sps[number] = found
        elif found is not None:
            self._pps[number] = found

    def _place(self, unit: bytes) -> PicturePlace:
        bits = Bits(_unescaped(unit[1:]))
        bits.golomb()  # first_mb_in_slice
        bits.golomb()  # slice_type
        sps = self._sps[self._pps[bits.golomb()]]
        bits.take(2 if sps.colour_planes else 0)
        frame_num = bits.take(sps.frame_num_bits)
        parity = -1
        if not sps.frames_only and bits.take(1):
            parity = bits.take(1)
        key = unit[0] & 31 == _KEY_SLICE
        second = parity >= 0 and self._field == (self._period, frame_num, 1 - parity)
        if key and not second:
            self._period += 1
            self._reference = (0, 0)
        if key:
            bits.golomb()  # idr_pic_id
        if sps.order_type == 1:
            raise ValueError("pictures are counted by type 1")
        order = (
            self._count(bits.take(sps.order_bits), sps, bool(unit[0] & 0x60)) if not sps.order_type else self._number
        )
        self._number += 1
        self._field = (self._period, frame_num, parity) if parity >= 0 and not second else None
        return PicturePlace(self._period, order, second)

    def _count(self, low: int, sps: _Sps, reference: bool) -> int:
        """PicOrderCnt of pic_order_cnt_type 0 (8.2.1.1), but for memory_management_control_operation 5."""
        high, last = self._reference
        whole = 1 << sps.order_bits
        if low < last and last - low >= whole // 2:
            high += whole
        elif low > last and low - last > whole // 2:
            high -= whole
        if reference:
            self._reference = (high, low)
        return high + low


# ---- details


def _of_record(record: bytes) -> bytes:
    """The parameter sets of an avcC record (ISO/IEC 14496-15), behind start codes."""
    at, units = 5, []
    for mask in (31, 255):
        n = record[at] & mask if at < len(record) else 0
        at += 1
        for _ in range(n):
            size = int.from_bytes(record[at : at + 2], "big")
            units.append(record[at + 2 : at + 2 + size])
            at += 2 + size
    return b"".join(b"\0\0\1" + unit for unit in units[:_MOST_UNITS])


def _unescaped(unit: bytes) -> bytes:
    return unit.replace(b"\0\0\3", b"\0\0")


def _read_set(unit: bytes) -> tuple[int, int | _Sps] | None:
    """The number of a parameter set, and what it says: of a PPS the number of its SPS. None: it is damaged."""
    try:
        bits = Bits(_unescaped(unit[1:]))
        return _read_sps(bits) if unit[0] & 31 == _SPS else (bits.golomb(), bits.golomb())
    except ValueError:
        return None


def _read_sps(bits: Bits) -> tuple[int, _Sps]:
    profile = bits.take(8)
    bits.take(16)
    number, chroma, planes = bits.golomb(), 1, False
    if profile in _HIGH:
        chroma = bits.golomb()
        planes = chroma == 3 and bool(bits.take(1))
        bits.golomb()
        bits.golomb()
        bits.take(1)
        if bits.take(1):
            _pass_lists(bits, 12 if chroma == 3 else 8)
    frame_num_bits = bits.golomb() + 4
    kind, order_bits = bits.golomb(), 0
    if kind == 0:
        order_bits = bits.golomb() + 4
    elif kind == 1:
        bits.take(1)
        bits.golomb()
        bits.golomb()
        for _ in range(min(bits.golomb(), 255)):
            bits.golomb()
    bits.golomb()
    bits.take(1)
    bits.golomb()
    bits.golomb()
    if max(frame_num_bits, order_bits) > 16 or kind > 2:
        raise ValueError("no such parameter set")
    return number, _Sps(planes, frame_num_bits, kind, order_bits, bool(bits.take(1)))


def _pass_lists(bits: Bits, n: int) -> None:
    """Over the scaling lists of an SPS (7.3.2.1.1.1)."""
    for number in range(n):
        if not bits.take(1):
            continue
        last = following = 8
        for _ in range(16 if number < 6 else 64):
            if following:
                code = bits.golomb()
                following = (last + ((code + 1) // 2 if code & 1 else -(code // 2))) & 0xFF
            last = following or last
