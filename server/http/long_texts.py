"""Reads JSON with long texts in slices, so that no call into the parser holds the interpreter for long.

A parser of C lets no other thread run from the first byte of a body to its last: 0.4 s with a picture of 64 MiB. So
long texts are taken out, the rest is parsed with marks in their places, and each text is read slice by slice.
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pydantic_core

from server.requests.refusal import invalid_request

SLICE = 1 << 20  # bytes that one call looks at: about a millisecond
LONG = 1 << 16  # bytes of a text that is taken out
LARGE, LESS_LONG = 1 << 23, 1 << 12  # of a body of so many bytes a shorter one, too
MOST_REST = 17 << 20  # bytes that are no long texts: 64 prompts of ids have fewer, and hold it for 90 ms
QUOTE, BACKSLASH = b'"\\'
ESCAPE = 6  # bytes of the longest one
HIGH_HALF = re.compile(rb"\\u[dD][89abAB]")  # of a surrogate pair: another escape follows
POSITION = re.compile(r" at line \d+ column \d+$")

Raw = bytes | bytearray  # JSON as it came
Span = tuple[int, int]  # the content of a text, without its quotes


def from_json(raw: Raw) -> Any:
    """What `pydantic_core.from_json(raw, allow_inf_nan=False)` gives. Raises ValueError and Refusal."""
    spans = list(long_texts(raw)) if len(raw) > LONG else []
    if not spans:
        _check_rest(raw)
        return pydantic_core.from_json(raw, allow_inf_nan=False)
    nonce = secrets.token_hex(16)  # no client can write a mark
    marks = [f"{nonce}-{n}" for n in range(len(spans))]
    rest, start = bytearray(), 0
    for mark, (begin, end) in zip(marks, spans, strict=True):
        rest += raw[start:begin] + mark.encode()
        start = end
    rest += raw[start:]
    _check_rest(rest)
    try:
        value = pydantic_core.from_json(rest, allow_inf_nan=False)
        texts = {mark: text_of(raw, *span) for mark, span in zip(marks, spans, strict=True)}
    except ValueError as error:  # where it says a position, that is one of the rest
        raise ValueError(POSITION.sub("", str(error))) from None
    return _with_texts(value, texts)


def _check_rest(rest: Raw) -> None:
    """Raise Refusal for numbers, short texts and blanks that would hold the interpreter for long."""
    if len(rest) > MOST_REST:
        message = f"the body holds more than {MOST_REST >> 20} MiB of numbers, names, blanks and short texts"
        raise invalid_request(message, code="too_many_values")


def long_texts(raw: Raw) -> Iterator[Span]:
    """The long ones, in order; of JSON that is not valid, those before its first fault."""
    least = LONG if len(raw) < LARGE else LESS_LONG
    opened = np.empty(0, np.int64)  # where the text began that no slice has closed yet
    escaped = False
    for start in range(0, len(raw), SLICE):
        found, escaped = _quotes(np.frombuffer(raw, np.uint8, min(SLICE, len(raw) - start), start), escaped)
        quotes = np.concatenate([opened, found + start])
        begins, ends = quotes[0::2] + 1, quotes[1::2]
        opened = quotes[2 * len(ends) :]
        for n in np.flatnonzero(ends - begins[: len(ends)] > least):
            yield int(begins[n]), int(ends[n])


def _quotes(piece: npt.NDArray[np.uint8], escaped: bool) -> tuple[npt.NDArray[np.int64], bool]:
    """Where texts begin or end, and whether the byte after `piece` is escaped. `escaped` says it of its first one."""
    quotes = np.flatnonzero(piece == QUOTE)
    slashes = piece == BACKSLASH
    if not escaped and not slashes.any():
        return quotes, False
    plain = np.maximum.accumulate(np.where(slashes, -1, np.arange(len(piece), dtype=np.int32)))
    # Backslashes right before each byte, and before the one that follows: an odd number of them escapes it.
    runs = np.arange(len(piece) + 1, dtype=np.int32) - 1 - np.concatenate([np.full(1, -1, np.int32), plain])
    runs += escaped & (runs == np.arange(len(runs)))  # they reach back to the slice before
    odd = runs % 2 == 1
    return quotes[~odd[quotes]], bool(odd[-1])


def text_of(raw: Raw, start: int, stop: int) -> str:
    """The text that lies there. Raises ValueError."""
    pieces = []
    while start < stop:
        end = stop if stop - start <= SLICE else _between_characters(raw, start, start + SLICE)
        pieces.append(pydantic_core.from_json(b'"%b"' % bytes(raw[start:end])))
        start = end
    return "".join(pieces)


def _between_characters(raw: Raw, start: int, stop: int) -> int:
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


def _begins_escape(piece: Raw, at: int) -> bool:
    return (at - len(piece[:at].rstrip(b"\\"))) % 2 == 0


def _with_texts(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, list):
        return [_with_texts(entry, texts) for entry in value]
    if isinstance(value, dict):
        return {texts.get(key, key): _with_texts(entry, texts) for key, entry in value.items()}
    return value
