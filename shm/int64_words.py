"""The two negative int64 words that travel inside input_ids, as pure arithmetic; knows nothing of files or memory.

Bit 63 is the sign and always set, bits 62..60 are the tag (1..5: a shape word of that many dimensions, 6: a name word),
bits 59..16 the payload, bits 15..0 a CRC-16 over the 48 bits above, which finds errors within 16 adjacent bits.
"""

import binascii
import operator
import re
from collections.abc import Sequence
from typing import SupportsIndex

NAME = re.compile(r"[0-9a-f]{11}")

_NAME_TAG = 6
_PAYLOAD_BITS = 44
_BITS_A_SIDE = {1: 44, 2: 22, 3: 14, 4: 11, 5: 8}
_CRC_START = 0xFFFF


class WordError(ValueError):
    """The value is not a word of the wanted kind, or cannot be told in one."""


def encode_shm_name_to_int64(name: str) -> int:
    """The negative int64 that tells `name`, 11 lowercase hex digits. Raises WordError for any other name."""
    if not NAME.fullmatch(name):
        raise WordError("a segment name is 11 lowercase hex digits")
    return _seal(_NAME_TAG, int(name, 16))


def decode_shm_name_from_int64(word: SupportsIndex) -> str:
    """The name told by `word`. Raises WordError for a shape word, a damaged word and anything not negative."""
    tag, payload = _open(word)
    if tag != _NAME_TAG:
        raise WordError("this word does not tell a name")
    return f"{payload:011x}"


def encode_shape_to_int64(shape: Sequence[SupportsIndex]) -> int:
    """The negative int64 that tells `shape`: 1 to 5 sides of at least 1 each.

    The longest side is 2**44-1, 4194303, 16383, 2047 or 255 for 1, 2, 3, 4 or 5 dimensions. Raises WordError beyond.
    """
    sides = list(map(operator.index, shape))
    bits = _BITS_A_SIDE.get(len(sides))
    if bits is None:
        raise WordError(f"a shape word tells 1 to 5 dimensions, not {len(sides)}")
    payload = 0
    for side in sides:
        if not 1 <= side < 1 << bits:
            raise WordError(f"a side of {side} does not fit: 1 to {(1 << bits) - 1} with {len(sides)} dimensions")
        payload = payload << bits | side
    return _seal(len(sides), payload)


def decode_shape_from_int64(word: SupportsIndex) -> tuple[int, ...]:
    """The shape told by `word`. Raises WordError for a name word, a damaged word and anything not negative."""
    ndim, payload = _open(word)
    bits = _BITS_A_SIDE.get(ndim)
    if bits is None:
        raise WordError("this word does not tell a shape")
    if payload >> (bits * ndim):
        raise WordError("this word has bits set that no shape sets")
    sides = tuple(payload >> (bits * i) & ((1 << bits) - 1) for i in reversed(range(ndim)))
    if 0 in sides:
        raise WordError("this word tells a side of 0")
    return sides


def _seal(tag: int, payload: int) -> int:
    body = (8 | tag) << _PAYLOAD_BITS | payload  # 8: the sign bit in front of the three of the tag
    return (body << 16 | binascii.crc_hqx(body.to_bytes(6, "big"), _CRC_START)) - (1 << 64)


def _open(word: SupportsIndex) -> tuple[int, int]:
    value = operator.index(word)
    if not -(1 << 63) <= value < 0:
        raise WordError("a word is a negative int64")
    body, crc = divmod(value + (1 << 64), 1 << 16)
    if crc != binascii.crc_hqx(body.to_bytes(6, "big"), _CRC_START):
        raise WordError("this word is damaged: its checksum is wrong")
    return body >> _PAYLOAD_BITS & 7, body & ((1 << _PAYLOAD_BITS) - 1)
