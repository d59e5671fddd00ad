"""The error for a chat that is refused: the whole of it, or one field."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from configs.nearest import did_you_mean

T = TypeVar("T")


class ChatError(ValueError):
    """The client must change the field `param`; it sees `message`, which holds no path, address or name but its own.

    Where bytes are read nobody knows the field: `in_field` names it.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


@contextmanager
def in_field(param: str) -> Iterator[None]:
    """A ChatError that names no field is one of `param`."""
    try:
        yield
    except ChatError as error:
        error.param = error.param or param
        raise


@contextmanager
def in_frame(i: int) -> Iterator[None]:
    """A ChatError says which picture of a list it is about, counted from 0 here and from 1 for the client."""
    try:
        yield
    except ChatError as error:
        raise ChatError(of_frame(i) + error.message, error.param, error.code) from None


def of_frame(i: int) -> str:
    """What a message about a picture of a list begins with."""
    return f"frame {i + 1} of the video: "


def shortened(text: str, limit: int = 60) -> str:
    """A client's own word, short and printable enough for an error message."""
    shown = text if len(text) <= limit else text[:limit] + "..."
    return shown if shown.isprintable() else "".join(c if c.isprintable() else "?" for c in shown)


def listed(names: Iterable[object]) -> str:
    """The first few of a client's own words, or of those that are known."""
    return ", ".join(f"'{shortened(str(name))}'" for name in islice(names, 8))


def type_name(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return "nothing" if value is None else names.get(type(value), "something else")


def expect(value: Any, kind: type[T], what: str, param: str) -> T:
    """`value` itself; what: is expected, for errors. Raises ChatError."""
    if not isinstance(value, kind):
        raise ChatError(f"expected {what}, got {type_name(value)}", param)
    return value


def refuse_other_keys(value: dict[str, Any], known: tuple[str, ...], param: str) -> None:
    """Raise ChatError for the first key that is none of `known`."""
    for key in value:
        if key not in known:
            shown = shortened(str(key))
            meant = did_you_mean(shown, known)
            raise ChatError(f"'{shown}' is not known here (known: {listed(known)}){meant}", f"{param}.{shown}")
