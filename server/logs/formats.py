"""One log record as a line of text or a JSON object: UTC to the millisecond, and no exception that quotes a request."""

import json
import logging
import re
import time
import traceback
from typing import Any

# The messages of these tell of sizes, devices and states. Others may quote what they choked on: a chat, a file's name.
QUOTES_NOTHING = (RuntimeError, MemoryError, AssertionError, ArithmeticError)
WITHHELD = "(its message may quote a request and is not logged)"
WHOLE = {"whole": True}  # `extra` of a record whose exception comes of no request
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class TextFormat(logging.Formatter):
    """`TIME LEVEL PROCESS[PID] LOGGER: MESSAGE KEY=VALUE...` on one line; traceback and stacks follow on their own."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        head = f"{stamp(record)} {record.levelname} {self._process}[{record.process}] {record.name}: "
        pairs = "".join(f" {key}={value}" for key, value in fields_of(record).items())
        line = head + CONTROL.sub(escaped, record.getMessage() + pairs)
        return "\n".join([line, *(text for text in (exception_of(record), stacks_of(record)) if text)])


class JsonFormat(logging.Formatter):
    """One object a line: time, level, process, pid, logger, message, then the record's own fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": stamp(record),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if trace := exception_of(record):
            told["exception"] = trace
        if stacks := stacks_of(record):
            told["stacks"] = stacks
        return json.dumps(told, default=str)


def stamp(record: logging.LogRecord) -> str:
    """When it was made: ISO 8601 in UTC, "2026-11-22T08:04:23.120Z"."""
    return utc(record.created)


def utc(moment: float) -> str:
    """A moment of time.time() in the same form."""
    seconds, milliseconds = divmod(int(moment * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was logged with `extra={"fields": {...}}`."""
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def exception_of(record: logging.LogRecord) -> str:
    """The traceback of a record's exception; "" without one."""
    error = record.exc_info[1] if record.exc_info else None
    return trace_of(error, whole=getattr(record, "whole", False)) if error is not None else ""


def stacks_of(record: logging.LogRecord) -> str:
    """What was logged with `extra={"stacks": ...}`: where threads of a process were; "" without it."""
    stacks: str = getattr(record, "stacks", "")
    return stacks


def trace_of(error: BaseException, *, whole: bool) -> str:
    """Frames and type of an exception and of those that led to it, oldest first; `whole`: the messages, too."""
    parts: list[str] = []
    link: BaseException | None = error
    while link is not None and len(parts) < 10:
        message = str(link) if whole or isinstance(link, QUOTES_NOTHING) else WITHHELD
        frames = "".join(traceback.format_tb(link.__traceback__))
        parts.append(f"Traceback (most recent call last):\n{frames}{type(link).__qualname__}: {message}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\nwhich led to\n".join(reversed(parts))


def escaped(found: re.Match[str]) -> str:
    """A control character as Python writes it: no message begins a line of its own."""
    return found[0].encode("unicode_escape").decode("ascii")
