"""Tells which VOPs of MPEG-4 hold a picture, from their headers (ISO/IEC 14496-2, 6.2.3 and 6.2.5)."""

import re

from tokenization.media.containers.bits import Bits

_VOL = re.compile(rb"\x00\x00\x01[\x20-\x2f]")  # video_object_layer_start_code
_VOP = b"\0\0\1\xb6"
_VBV_BITS = 79  # of all vbv_parameters
_VOL_BYTES, _VOP_BYTES = 64, 64  # more than what is read of a header, and than a VOP takes that is not coded


class CodedVops:
    """Of one stream; packets come in the order of the file."""

    def __init__(self, extradata: bytes | None) -> None:
        self._time_bits = _time_bits(extradata or b"")

    def holds(self, packet: bytes) -> bool:
        """Whether a packet holds a picture: one that is not coded repeats the last, and a decoder passes over it."""
        at = packet.find(_VOP)
        found = _VOL.search(packet, 0, at) if at > 0 else None
        if found:
            self._time_bits = _time_bits(packet[found.start() : at]) or self._time_bits
        if at < 0 or not self._time_bits or len(packet) - at > _VOP_BYTES:
            return True
        try:
            bits = Bits(packet[at + 4 :])
            bits.take(2)  # vop_coding_type
            while bits.take(1):  # modulo_time_base
                pass
            marked = bits.take(1)
            bits.take(self._time_bits)
            return not (marked and bits.take(1)) or bool(bits.take(1))  # vop_coded
        except ValueError:
            return True


def _time_bits(data: bytes) -> int:
    """Of vop_time_increment, as the first video object layer has it; 0: there is none."""
    found = _VOL.search(data)
    if found is None:
        return 0
    try:
        bits = Bits(data[found.end() : found.end() + _VOL_BYTES])
        bits.take(9)
        version = 1
        if bits.take(1):  # is_object_layer_identifier
            version = bits.take(4)
            bits.take(3)
        if bits.take(4) == 15:  # aspect_ratio_info
            bits.take(16)
        if bits.take(1):  # vol_control_parameters
            bits.take(3)
            bits.take(_VBV_BITS if bits.take(1) else 0)
        if bits.take(2) == 3 and version != 1:  # video_object_layer_shape
            bits.take(4)
        bits.take(1)
        return max((bits.take(16) - 1).bit_length(), 1)
    except ValueError:
        return 0
