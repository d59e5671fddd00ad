"""Reads JSON with long texts in slices, so that no call into the parser holds the interpreter for long.

A parser of C lets no other thread run from the first byte of a body to its last: 0.4 s with a picture of 64 MiB. So
long texts are taken out, the rest is parsed with marks in their places, and each text is read slice by slice.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pydantic_core

from server.http.large_bodies import Steps, at_once
from server.requests.refusal import invalid_request

SLICE = 1 << 20  # bytes that one call looks at: a millisecond, or ten where all of them are escapes
LONG = 1 << 16  # bytes of a text that is taken out
LARGE, LESS_LONG = 1 << 23, 1 << 12  # of a body of so many bytes a shorter one, too
MOST_REST = 17 << 20  # bytes that are no long texts: 64 prompts of ids have fewer, and hold it for 90 ms
QUOTE, BACKSLASH = b'"\\'
PLAIN = np.frombuffer(b"x", np.uint8)  # that means nothing
ESCAPE = 6  # bytes of the longest one
HIGH_HALF = re.compile(rb"\\u[dD][89abAB]")  # of a surrogate pair: another escape follows
POSITION = re.compile(r" at line \d+ column \d+$")

Span = tuple[int, int]  # the content of a text, without its quotes


@dataclass(frozen=True, slots=True)
class Parsed:
    """The value of a body that was read slice by slice."""

    value: Any


Raw = bytes | bytearray | Parsed  # JSON as it came, or what it says
CheckText = Callable[[bytes | bytearray, Span], Steps[None]]


def from_json(raw: bytes | bytearray) -> Any:
    """What `pydantic_core.from_json(raw, allow_inf_nan=False)` gives. Raises ValueError and Refusal."""
    return at_once(parsed(raw)).value


def parsed(raw: bytes | bytearray, check: CheckText | None = None) -> Steps[Parsed]:
    """The same, with a stop after each slice.

    What is no long text, at most MOST_REST, is parsed in one step, and in another the texts come to their places.
    check: looks at each long text before anything is parsed.
    """
    spans = (yield from long_texts(raw)) if len(raw) > LONG else []
    if check is not None:
        for span in spans:
            yield from check(raw, span)
    if not spans:
        _check_rest(raw)
        return Parsed(pydantic_core.from_json(raw, allow_inf_nan=False))
    nonce = secrets.token_hex(16)  # no client can write a mark
    marks = [f"{nonce}-{n}" for n in range(len(spans))]
    rest, start = bytearray(), 0
    for mark, (begin, end) in zip(marks, spans, strict=True):
        rest += raw[start:begin] + mark.encode()
        start = end
    rest += raw[start:]
    _check_rest(rest)
    texts: dict[str, str] = {}
    try:
        value = pydantic_core.from_json(rest, allow_inf_nan=False)
        for mark, span in zip(marks, spans, strict=True):
            texts[mark] = yield from text_of(raw, span)
    except ValueError as error:  # where it says a position, that is one of the rest
        raise ValueError(POSITION.sub("", str(error))) from None
    return Parsed(_with_texts(value, texts))


def _check_rest(rest: bytes | bytearray) -> None:
    """Raise Refusal for numbers, short texts and blanks that would hold the interpreter for long."""
    if len(rest) > MOST_REST:
        message = f"the body holds more than {MOST_REST >> 20} MiB of numbers, names, blanks and short texts"
        raise invalid_request(message, code="too_many_values")


def long_texts(raw: bytes | bytearray) -> Steps[list[Span]]:
    """The long ones, in order; of JSON that is not valid, those before its first fault."""
    least = LONG if len(raw) < LARGE else LESS_LONG
    found: list[Span] = []
    opened = np.empty(0, np.int64)  # where the text began that no slice has closed yet
    escaped = False
    for start in range(0, len(raw), SLICE):
        marks, escaped = _quotes(np.frombuffer(raw, np.uint8, min(SLICE, len(raw) - start), start), escaped)
        quotes = np.concatenate([opened, marks + start])
        begins, ends = quotes[0::2] + 1, quotes[1::2]
        opened = quotes[2 * len(ends) :]
        long = np.flatnonzero(ends - begins[: len(ends)] > least)
        found += zip(begins[long].tolist(), ends[long].tolist(), strict=True)
        yield
    return found


def _quotes(piece: npt.NDArray[np.uint8], escaped: bool) -> tuple[npt.NDArray[np.int64], bool]:
    """Where texts begin or end, and whether the byte after `piece` is escaped. `escaped` says it of its first one."""
    if not escaped and not (piece == BACKSLASH).any():
        return np.flatnonzero(piece == QUOTE), False
    piece = without_pairs(np.concatenate([PLAIN, piece[1:]]) if escaped else piece)
    quotes = piece == QUOTE
    quotes[1:] &= piece[:-1] != BACKSLASH
    return np.flatnonzero(quotes), bool(piece[-1] == BACKSLASH)


def without_pairs(piece: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """In which each backslash that is left escapes what follows: those that are escaped are gone, as is what did that.

    As many bytes as before, of which the first is not escaped.
    """
    slashes = piece == BACKSLASH
    if not (slashes[1:] & slashes[:-1]).any():
        return piece
    return np.frombuffer(piece.tobytes().replace(b"\\\\", 2 * PLAIN.tobytes()), np.uint8)


def text_of(raw: bytes | bytearray, span: Span) -> Steps[str]:
    """The text that lies there. Raises ValueError."""
    pieces: list[str] = []
    for piece in pieces_of(raw, span):
        pieces.append(pydantic_core.from_json(b'"%b"' % piece))
        yield
    return "".join(pieces)


def pieces_of(raw: bytes | bytearray, span: Span) -> Iterator[bytes]:
    """What lies there, slice by slice, each of whole characters."""
    start, stop = span
    while start < stop:
        end = stop if stop - start <= SLICE else _between_characters(raw, start, start + SLICE)
        yield bytes(raw[start:end])
        start = end


def _between_characters(raw: bytes | bytearray, start: int, stop: int) -> int:
    """The last place at `stop` or before it that splits neither an escape, a surrogate pair nor a byte sequence."""
    piece = raw[start:stop]
    slash = piece.rfind(BACKSLASH)
    if slash >= len(piece) - 2 * ESCAPE:
        at = slash if _begins_escape(piece, slash) else slash - 1
        before = at - ESCAPE
        return start + (before if HIGH_HALF.match(piece, before) and _begins_escape(piece, before) else at)
    while stop > start + len(piece) - 3 and raw[stop] & 0xC0 == 0x80:  # it continues a character of UTF-8
        stop -= 1
    return stop


def _begins_escape(piece: bytes | bytearray, at: int) -> bool:
    return (at - len(piece[:at].rstrip(b"\\"))) % 2 == 0


def _with_texts(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, list):
        return [_with_texts(entry, texts) for entry in value]
    if isinstance(value, dict):
        return {texts.get(key, key): _with_texts(entry, texts) for key, entry in value.items()}
    return value
