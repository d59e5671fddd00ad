"""Who waits for large weights sees how far they are; small ones say nothing."""

import io
import logging

import pytest

from server.logs.load_progress import GIB, LoadProgress
from tests.server.tables import each_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(stream: io.StringIO, seconds: list[float]) -> str:
    """What is written while four GiB come, one at each of these times."""
    times = iter([0.0, *seconds])
    progress = LoadProgress(stream, lambda: next(times))
    for done in range(1, len(seconds) + 1):
        progress(done * GIB, len(seconds) * GIB)
    return stream.getvalue()


def test_a_terminal_has_one_line_that_moves_and_ends() -> None:
    line = "loading weights: {} % of 4.0 GiB"
    assert told(Terminal(), [1.0, 3.0, 3.1, 3.15]) == f"\r{line.format(50)}\r{line.format(100)}\n"


def test_a_log_has_a_line_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pixelferry"):
        assert told(io.StringIO(), [3.0, 5.0, 14.0, 14.1]) == ""
    assert [record.getMessage().split(":")[1].split("%")[0].strip() for record in caplog.records] == ["25", "75", "100"]


@each_of("stream", [Terminal(), io.StringIO()])
def test_what_loads_fast_says_nothing(stream: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    assert told(stream, [0.1, 0.2, 1.0, 1.9]) == "" and caplog.records == []
