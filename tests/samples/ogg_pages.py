"""Takes an Ogg file to its pages and writes them again (RFC 3533), as encoders other than FFmpeg's lay them out."""

import struct
from collections.abc import Iterator


def with_empty_packets(data: bytes, *, behind: int) -> bytes:
    """An empty packet behind each packet, as far as a page has room, of all pages but the first `behind` and the last.

    A lacing value of 0 behind one that ends a packet is a packet of no bytes.
    """
    pages = list(_pages(data))
    out = b""
    for number, (head, lacing, body) in enumerate(pages):
        values, room = bytearray(), 255 - len(lacing) if behind <= number < len(pages) - 1 else 0
        for value in lacing:
            values.append(value)
            if value < 255 and room:
                values.append(0)
                room -= 1
        page = head[:22] + bytes(4) + bytes((len(values),)) + values + body
        out += page[:22] + struct.pack("<I", _checksum(page)) + page[26:]
    return out


def _pages(data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(header without the number of lacing values, lacing values, body) of each."""
    at = 0
    while at < len(data):
        start = at + 27 + data[at + 26]
        lacing = data[at + 27 : start]
        yield data[at : at + 26], lacing, data[start : start + sum(lacing)]
        at = start + sum(lacing)


def _checksum(page: bytes) -> int:
    """CRC-32 with the polynomial 04c11db7, not reflected, from 0."""
    crc = 0
    for byte in page:
        crc = (crc << 8 & 0xFFFFFFFF) ^ _TABLE[crc >> 24 ^ byte]
    return crc


def _remainder(crc: int) -> int:
    for _ in range(8):
        crc = crc << 1 ^ (0x104C11DB7 if crc >> 31 else 0)
    return crc


_TABLE = tuple(_remainder(byte << 24) for byte in range(256))
