"""The line that tells how far a run is."""

import asyncio
import io

from server.loadtest.driving.progress import ProgressLine
from server.loadtest.results.measures import Record


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, *, quiet: bool = False) -> str:
    progress = ProgressLine(out, quiet=quiet)
    for index in range(3):
        progress.sent()
        error = "timeout" if index == 1 else None
        if index < 2:
            progress.ended(Record(index=index, sent=1.0, first=1.25, output_tokens=10, error=error))

    async def run() -> None:
        task = asyncio.create_task(progress.run())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return out.getvalue()


def test_the_line_counts_what_is_over_and_what_is_not() -> None:
    text = shown(io.StringIO())
    assert "2 done, 1 under way, 1 errors" in text and text.endswith("\n")
    assert "\x1b" not in text


def test_on_a_terminal_it_moves() -> None:
    assert shown(Terminal()).startswith("\r\x1b[2K")


def test_who_wants_quiet_has_it() -> None:
    assert shown(io.StringIO(), quiet=True) == ""
