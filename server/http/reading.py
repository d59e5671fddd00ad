"""Reads a body: counted before an object is made of it, and what is large in a thread beside the loop."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from server.http.long_texts import Raw
from server.requests.checks import most_pieces
from server.requests.refusal import invalid_request

R = TypeVar("R")
Read = Callable[[Raw], R]

LARGE_BYTES = 1 << 20
LIGHT_BYTES = 1 << 17  # counted as it came for as long as its request lives: 768 of these are 96 MiB
SLICE = 1 << 20  # bytes that are counted in one call, while which no other thread runs
MEMBERS_OF_A_PIECE = 4  # two objects or lists and two fields: a turn or a part, in either dialect
MEMBERS_BESIDE = 4096  # parameters, and variables of a template
MOST_MEMBERS = 1 << 19
ENTRIES = 1 << 19  # ids of up to 64 prompts, or of a whole vocabulary, with room to spare
NUMBERS = (int, float, type(None))
QUOTE, COMMA, COLON, LIST, OBJECT = b'",:[{'


class Counts(NamedTuple):
    """What makes a body of JSON dear: each object, list and field, and each entry, becomes an object of Python's."""

    members: int  # objects, lists and fields
    entries: int  # commas

    def within(self, most: "Counts") -> bool:
        return self.members <= most.members and self.entries <= most.entries


LARGE = Counts(members=2048, entries=16384)  # a millisecond or two of reading


def most_counts(max_model_len: int) -> Counts:
    """What the largest chat, the longest lists of ids and all parameters have together, with room to spare."""
    members = MEMBERS_OF_A_PIECE * most_pieces(max_model_len) + MEMBERS_BESIDE
    return Counts(members=min(members, MOST_MEMBERS), entries=max(ENTRIES, 2 * max_model_len))


class BodyReader:
    """Joins the pieces of a body, counts what it holds and has it read."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bodies")

    async def read(self, pieces: AsyncIterator[bytes], most: Counts, read: Read[R]) -> tuple[R, int]:
        """What `read` makes of the whole body, and how many bytes of memory that holds.

        Raises what it raises, and Refusal for one that holds too much.
        """
        found = [piece async for piece in pieces]
        if sum(map(len, found)) <= LARGE_BYTES:
            raw = b"".join(found)
            if loose_counts(raw).within(LARGE):
                return (read(raw), len(raw)) if len(raw) <= LIGHT_BYTES else weighed(read(raw))
            found = [raw]

        def read_large() -> tuple[R, int]:
            raw = joined(found)
            check_counts(raw, most)
            return weighed(read(raw))

        return await asyncio.get_running_loop().run_in_executor(self._thread, read_large)


def weighed(value: R) -> tuple[R, int]:
    """It, and the bytes of memory of all that it holds; what it holds twice counts once, a number as its place."""
    nbytes, seen, left = 0, set[int](), list[object]([value])
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        nbytes += sys.getsizeof(one)
        if isinstance(one, dict):
            inner: Iterable[object] = (*one, *one.values())
        elif isinstance(one, list | tuple):
            inner = one
        else:
            inner = [getattr(one, name) for name in _fields(one)]
        left += [each for each in inner if not isinstance(each, NUMBERS)]
    return value, nbytes


def _fields(one: object) -> Iterable[str]:
    """Of what a request consists of: dataclasses, and structures of msgspec and pydantic; a text has none."""
    kind = type(one)
    for names in ("__dataclass_fields__", "__struct_fields__", "model_fields"):
        if (found := getattr(kind, names, None)) is not None:
            return tuple(found)
    return ()


def joined(pieces: list[bytes]) -> bytearray:
    """All of them, which are let go of one by one: never is all there twice."""
    whole = bytearray(sum(map(len, pieces)))
    end = len(whole)
    while pieces:
        piece = pieces.pop()
        whole[end - len(piece) : end] = piece
        end -= len(piece)
    return whole


def check_counts(raw: Raw, most: Counts) -> None:
    """Raise Refusal for more than `most`."""
    if loose_counts(raw).within(most) or exact_counts(raw, most).within(most):
        return
    raise invalid_request(
        f"the body holds more than {most.members} objects, lists and fields, or more than {most.entries} entries: "
        "no chat that fits into the model needs so many",
        code="too_many_values",
    )


def loose_counts(raw: Raw) -> Counts:
    """Never too few: what stands in texts counts, too."""
    slices = [(start, start + SLICE) for start in range(0, len(raw), SLICE)]
    return Counts(
        members=sum(raw.count(mark, *at) for at in slices for mark in (OBJECT, LIST, COLON)),
        entries=sum(raw.count(COMMA, *at) for at in slices),
    )


def exact_counts(raw: Raw, most: Counts) -> Counts:
    """Without what stands in texts; the count ends where it is more than `most`."""
    found, inside, start = Counts(0, 0), 0, 0
    while start < len(raw) and found.within(most):
        piece = bytes(raw[start : start + SLICE])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the last one belongs to what follows it
            piece = bytes(raw[start : start + SLICE + 1])
        start += len(piece)
        marks = np.frombuffer(piece.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        if not len(marks):
            continue
        in_text = np.bitwise_xor.accumulate((marks == QUOTE).view(np.uint8)) ^ inside
        inside = int(in_text[-1])
        outside = in_text == 0
        members = (marks == OBJECT) | (marks == LIST) | (marks == COLON)
        found = Counts(
            members=found.members + int(np.count_nonzero(members & outside)),
            entries=found.entries + int(np.count_nonzero((marks == COMMA) & outside)),
        )
    return found
