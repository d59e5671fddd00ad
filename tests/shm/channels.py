"""Messages that the tests of the channel send."""

import struct
from pathlib import Path

import msgspec
import numpy as np


class Job(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    number: int
    text: str = ""
    roots: tuple[Path, ...] = ()


class Result(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    number: int
    ids: np.ndarray
    spans: tuple[tuple[int, int], ...] = ()


Message = Job | Result


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body
