"""Reads a body of JSON: counted first, in a thread where it is large."""

import operator
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pydantic_core

from server.http.large_bodies import LargeBodies, Steps
from server.http.long_texts import LONG, CheckText, Parsed, Raw, from_json, parsed
from server.http.text_lengths import TextLength
from server.request_context import LIGHT_BYTES
from server.requests.checks import FEWEST_PIECES
from server.requests.refusal import Refusal, encoded_body, invalid_request
from tokenization.chat.errors import shortened

R = TypeVar("R")

LARGE_BYTES = 1 << 20
SLICE = 1 << 20  # bytes that are counted in one call, while which no other thread runs
MOST_PIECES = 64  # that are joined in one step; most have 64 KiB
MEMBERS_OF_A_PIECE = 4  # two objects or lists and two fields: a turn or a part, in either dialect
MEMBERS_BESIDE = 4096  # parameters, and variables of a template
MOST_MEMBERS = 1 << 19
ENTRIES = 1 << 19  # ids of up to 64 prompts, or of a whole vocabulary, with room to spare
NUMBERS = frozenset((int, float, bool, type(None)))
QUOTE, COMMA = b'",'
MEMBERS = b":[{"
DIGITS = bytes.maketrans(b"123456789", b"000000000")
MOST_DIGITS = 640  # of a number: the least bound that Python itself takes
MOST_SHORT = 1 << 16  # bytes that are read in 5 ms at worst, whatever their numbers


class Counts(NamedTuple):
    """What makes a body of JSON dear: each object, list and field, and each entry, becomes an object of Python's; a
    whole number takes time by the square of its digits.
    """

    members: int  # objects, lists and fields
    entries: int  # commas
    long_numbers: int = 0  # places with more than MOST_DIGITS

    def within(self, most: "Counts") -> bool:
        few = self.members <= most.members and self.entries <= most.entries
        return few and self.long_numbers <= most.long_numbers

    def and_of(self, more: "Counts") -> "Counts":
        return Counts(*map(operator.add, self, more))


LARGE = Counts(members=2048, entries=16384)  # a millisecond or two of reading


def most_counts(max_model_len: int) -> Counts:
    """What the largest chat, the longest lists of ids and all parameters have together, with room to spare."""
    members = MEMBERS_OF_A_PIECE * max(FEWEST_PIECES, max_model_len) + MEMBERS_BESIDE
    return Counts(members=min(members, MOST_MEMBERS), entries=max(ENTRIES, 2 * max_model_len))


class BodyReader:
    """Joins the pieces of a body, counts what it holds and has it read."""

    def __init__(self, most_characters: Callable[[], int] = lambda: sys.maxsize) -> None:
        """most_characters: of one prompt."""
        self._most_characters = most_characters
        self._large = LargeBodies()

    async def read(
        self,
        pieces: AsyncIterator[bytes],
        max_model_len: int,
        read: Callable[[Raw], R],
        left: Callable[[], bool] = lambda: False,
        *,
        client: str = "",
        json: bool = True,
    ) -> tuple[R, int]:
        """What `read` makes of the whole body, and how many bytes of memory that holds.

        left: whether its client has; what waits for its turn then is not read on. client: has its share of the thread.
        json: else nothing in it is counted, and `read` makes steps. Raises what `read` raises, Refusal for a body that
        holds too much, and ClientDisconnect.
        """
        found: list[bytes] = []
        async for piece in pieces:
            found.append(piece)
        nbytes = sum(map(len, found))
        if json and nbytes <= LARGE_BYTES:
            raw = b"".join(found)
            if _counts(np.frombuffer(raw, np.uint8)).within(LARGE):
                return (read(raw), len(raw)) if len(raw) <= LIGHT_BYTES else weighed(read(raw))
            found = [raw]
        steps_of: Any = read
        steps = self._json(found, max_model_len, read) if json else _other(found, steps_of)
        return await self._large.read(client, nbytes, steps, left)

    def _json(self, pieces: list[bytes], max_model_len: int, read: Callable[[Raw], R]) -> Steps[tuple[R, int]]:
        """`read` gets what was parsed, and is one step: the counts bound it."""
        length = TextLength(self._most_characters(), max_model_len)
        return weighed(read((yield from _parsed(pieces, most_counts(max_model_len), length.check))))


def _parsed(pieces: list[bytes], most: Counts, check: CheckText) -> Steps[Parsed]:
    """Raises Refusal."""
    raw = yield from joined(pieces)
    yield from check_counts(raw, most)
    try:
        return (yield from parsed(raw, check))
    except ValueError as error:
        raise _not_json(error) from None


def _other(pieces: list[bytes], read: Callable[[Raw], Steps[R]]) -> Steps[tuple[R, int]]:
    """A form, which has a parser of its own."""
    raw = yield from joined(pieces)
    return weighed((yield from read(raw)))


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
        if not NUMBERS.issuperset(map(type, inner)):  # in C: there may be many ids
            left += [each for each in inner if type(each) not in NUMBERS]
    return value, nbytes


def _fields(one: object) -> Iterable[str]:
    """Of what a request consists of: dataclasses, and structures of msgspec and pydantic; a text has none."""
    kind = type(one)
    for names in ("__dataclass_fields__", "__struct_fields__", "model_fields"):
        if (found := getattr(kind, names, None)) is not None:
            return tuple(found)
    return ()


def joined(pieces: list[bytes]) -> Steps[bytearray]:
    """All of them, which are let go of one by one: never is all there twice."""
    whole = bytearray(sum(map(len, pieces)))
    end = len(whole)
    while pieces:
        piece = pieces.pop()
        whole[end - len(piece) : end] = piece
        end -= len(piece)
        if not len(pieces) % MOST_PIECES:
            yield
    return whole


def check_counts(raw: bytes | bytearray, most: Counts) -> Steps[None]:
    """Raises Refusal for more than `most`."""
    if (yield from loose_counts(raw)).within(most) or (yield from exact_counts(raw, most)).within(most):
        return
    raise invalid_request(
        f"the body holds more than {most.members} objects, lists and fields, more than {most.entries} entries or a "
        f"number of more than {MOST_DIGITS} digits: no chat that fits into the model needs so many",
        code="too_many_values",
    )


def loose_counts(raw: bytes | bytearray) -> Steps[Counts]:
    """Never too few: what stands in texts counts, too."""
    found = Counts(0, 0)
    for start in range(0, len(raw), SLICE):
        found = found.and_of(_counts(np.frombuffer(raw, np.uint8, min(SLICE, len(raw) - start), start)))
        yield
    return found


def exact_counts(raw: bytes | bytearray, most: Counts) -> Steps[Counts]:
    """Without what stands in texts; the count ends where it is more than `most`."""
    found, inside, start = Counts(0, 0), 0, 0
    while start < len(raw) and found.within(most):
        piece = bytes(raw[start : start + SLICE])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # the last one belongs to what follows it
            piece = bytes(raw[start : start + SLICE + 1])
        start += len(piece)
        marks = np.frombuffer(piece.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        if len(marks):
            in_text = np.bitwise_xor.accumulate((marks == QUOTE).view(np.uint8)) ^ inside
            inside = int(in_text[-1])
            found = found.and_of(_counts(marks[in_text == 0]))
        yield
    return found


def _counts(marks: npt.NDArray[np.uint8]) -> Counts:
    """Of all bytes there; numpy compares many at once, bytes.count one after the other."""
    members = 0
    for mark in MEMBERS:
        members += int(np.count_nonzero(marks == mark))
    digits = marks.tobytes().translate(DIGITS) if len(marks) > MOST_SHORT else b""
    return Counts(
        members=members,
        entries=int(np.count_nonzero(marks == COMMA)),
        long_numbers=int(b"0" * (MOST_DIGITS + 1) in digits),
    )


def require_plain(codings: Iterable[str]) -> None:
    """Raise Refusal for a body that is compressed: its bytes would be read as what they are not.

    codings: each field `Content-Encoding` of the head.
    """
    for coding in ",".join(codings).split(","):
        if coding.strip().lower() not in ("", "identity"):
            raise encoded_body(coding.strip())


def require_json(content_type: str | None) -> None:
    """Raise Refusal for a body that is not declared as JSON.

    A web page may send any other type to any address without asking it first, so a browser's visitor could be made to
    ask a server on its own machine.
    """
    kind = (content_type or "").partition(";")[0].strip()
    if kind.lower() != "application/json":
        said = f"it is {shortened(kind)!r}" if kind else "it is missing"
        raise invalid_request(f"the Content-Type must be application/json, {said}", code="unsupported_media_type")


def body_object(raw: Raw, *, or_inputs: bool = False) -> dict[str, Any]:
    """The JSON object in a body; where a bare list is taken, too, it is the `inputs` of one. Raises Refusal."""
    try:
        if isinstance(raw, Parsed):
            body = raw.value
        else:
            body = pydantic_core.from_json(raw, allow_inf_nan=False) if len(raw) <= LONG else from_json(raw)
    except ValueError as error:
        raise _not_json(error) from None
    if or_inputs and isinstance(body, list):
        return {"inputs": body}
    if not isinstance(body, dict):
        other = " or a list of inputs" if or_inputs else ""
        raise invalid_request(f"the body must be a JSON object{other}", code="invalid_json")
    return body


def _not_json(error: ValueError) -> Refusal:
    return invalid_request(f"the body is not valid JSON: {error}", code="invalid_json")
