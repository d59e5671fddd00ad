"""A record is one line, in UTC, and quotes no request."""

import json
import logging
import re
import sys
from typing import Any

from server.logs.formats import WHOLE, JsonFormat, TextFormat


def record(message: str, *args: object, error: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    made = logging.getLogger("x").makeRecord("pixelferry", logging.WARNING, "f.py", 1, message, args, info, extra=extra)
    made.created, made.msecs, made.process = 1795335456.0079, 7.9, 42
    return made


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except type(error):
        caught = sys.exception() if sys.version_info >= (3, 11) else sys.exc_info()[1]
        assert isinstance(caught, Exception)
        return caught


def test_a_line_of_text() -> None:
    line = TextFormat("engine").format(record("%d of %s", 3, "4", fields={"request_id": "ab", "seconds": 0.5}))
    assert line == "2026-11-22T08:17:36.007Z WARNING engine[42] pixelferry: 3 of 4 request_id=ab seconds=0.5"


def test_an_object_of_json() -> None:
    line = JsonFormat("worker").format(record("a\n%s", "\ud800", fields={"request_id": "ab"}))
    assert "\n" not in line and json.loads(line) == {
        "time": "2026-11-22T08:17:36.007Z", "level": "warning", "process": "worker", "pid": 42,
        "logger": "pixelferry", "message": "a\n\ud800", "request_id": "ab",
    }  # fmt: skip


def test_stacks_stand_below_their_line() -> None:
    stacks = 'Thread 0x1 (most recent call first):\n  File "a.py", line 3 in f'
    assert TextFormat("server").format(record("hangs", stacks=stacks)).endswith(f"pixelferry: hangs\n{stacks}")
    assert json.loads(JsonFormat("server").format(record("hangs", stacks=stacks)))["stacks"] == stacks


def test_no_message_begins_a_second_line() -> None:
    text = TextFormat("server").format(record("a\r\nb\x1b[31m\x85\u2028%s", "\x00"))
    assert text.endswith("a\\r\\nb\\x1b[31m\\x85\\u2028\\x00")


def test_an_exception_shows_frames_and_types_and_quotes_no_request() -> None:
    cause = raised(ValueError("my secret"))
    for error in (raised(KeyError("my secret"), cause), raised(OSError(36, "File name too long", "my secret"))):
        text = TextFormat("server").format(record("failed", error=error))
        assert "my secret" not in text and "test_formats.py" in text and type(error).__name__ in text
        assert "my secret" not in JsonFormat("server").format(record("failed", error=error))
    assert "ValueError" in TextFormat("server").format(record("failed", error=raised(KeyError("x"), cause)))


def test_messages_that_quote_nothing_stay() -> None:
    text = TextFormat("engine").format(record("failed", error=raised(RuntimeError("out of memory"))))
    assert text.endswith("RuntimeError: out of memory")


def test_a_process_that_ends_says_all() -> None:
    told = json.loads(JsonFormat("engine").format(record("failed", error=raised(KeyError("lm_head.weight")), **WHOLE)))
    assert re.search(r"raise error from cause\n.*KeyError: 'lm_head.weight'$", told["exception"], re.DOTALL)


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert TextFormat("server").format(record("failed", error=first)).count("ValueError") == 10
