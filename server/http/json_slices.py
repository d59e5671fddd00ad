"""Writes the JSON of an answer in slices, so that a long one leaves the loop its turns."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

SLICE = 32768  # bytes; about a millisecond of making and writing log-probabilities


class LazyList:
    """A list whose entries are made as they are written, and each time that they are."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


def encoded(value: Any) -> bytes:
    """All of it at once: what is known to be short."""
    return msgspec.json.encode(value, enc_hook=list)  # nothing of ours but LazyList is unknown to it


async def written(value: Any) -> list[bytes]:
    """The JSON of `value`, whose long lists are LazyList. Between two slices others have their turn."""
    slices: list[bytes] = []
    found = bytearray()
    for piece in _pieces(value):
        found += piece
        if len(found) >= SLICE:
            slices.append(bytes(found))
            found.clear()
            await asyncio.sleep(0)
    return [*slices, bytes(found)]


def _pieces(value: Any) -> Iterator[bytes]:
    """An object that holds no other and no LazyList is one piece, as is any other list."""
    if isinstance(value, LazyList):
        opening = b"["
        for entry in value:
            yield opening
            yield from _pieces(entry)
            opening = b","
        yield b"[]" if opening == b"[" else b"]"
    elif isinstance(value, dict) and any(isinstance(inner, dict | LazyList) for inner in value.values()):
        opening = b"{"
        for key, inner in value.items():
            yield opening + encoded(key) + b":"
            yield from _pieces(inner)
            opening = b","
        yield b"}"
    else:
        yield encoded(value)
