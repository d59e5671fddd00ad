"""Open and closed loops: who sends when, how many are under way, what is measured, and how a step ends."""

import asyncio
from contextlib import nullcontext
from itertools import pairwise
from time import perf_counter

from server.loadtest.driving.pacing import Pacer
from server.loadtest.options import read_options
from server.loadtest.results.measures import Record


class Stage:
    """Sends nothing; each request takes `seconds`, and ends when `together` have been under way at once."""

    def __init__(self, seconds: float = 0.0, together: int = 0) -> None:
        self.seconds, self.together = seconds, together
        self.started = perf_counter()
        self.under_way = self.most = 0

    async def send(self, number: int, due: float, measured: bool, room: asyncio.Semaphore | None) -> Record:
        record = Record(index=number, due=due, measured=measured)
        try:
            async with room or nullcontext():
                record.sent = perf_counter() - self.started
                await self.under(record)
        except asyncio.CancelledError:
            record.error = "unfinished"
        return record

    async def under(self, record: Record) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self.seconds)
            while self.most < self.together:
                await asyncio.sleep(0.001)
        finally:
            self.under_way -= 1
            record.ended = perf_counter() - self.started

    def pacer(self, flags: tuple[str, ...]) -> Pacer:
        self.started = perf_counter()
        return Pacer(read_options(list(flags)), self.send, started=self.started, now=0.0)

    def open(self, dues: list[float], *flags: str) -> list[Record]:
        async def run() -> list[Record]:
            pacer = self.pacer(flags)
            await pacer.open_loop(dues)
            return pacer.records

        return asyncio.run(run())

    def closed(self, streams: int, *flags: str) -> list[Record]:
        async def run() -> list[Record]:
            pacer = self.pacer(flags)
            await pacer.closed_loop(streams)
            return pacer.records

        return asyncio.run(run())


def test_an_open_loop_waits_for_nobody() -> None:
    stage = Stage(together=4)
    records = stage.open([0.0, 0.01, 0.02, 0.03])
    assert stage.most == 4
    assert sorted(record.due for record in records) == [0.0, 0.01, 0.02, 0.03]
    assert all(record.sent >= record.due for record in records), "nothing leaves early"


def test_a_cap_holds_an_open_loop_back_and_the_wait_shows() -> None:
    stage = Stage(seconds=0.02)
    records = sorted(stage.open([0.0] * 6, "--max-in-flight", "2"), key=lambda record: record.sent)
    assert stage.most == 2 and len(records) == 6
    assert records[-1].wait >= 0.04


def test_what_a_cap_held_back_to_the_end_is_told_too() -> None:
    records = Stage(seconds=30).open([0.0] * 3, "--max-in-flight", "1", "--grace", "50ms")
    assert [record.error for record in records] == ["unfinished"] * 3


def test_requests_of_a_ramp_are_not_measured() -> None:
    records = Stage().open([0.0, 0.01, 0.02, 0.03], "--ramp", "20ms")
    assert [record.measured for record in sorted(records, key=lambda record: record.due)] == [False, False, True, True]


def test_what_outlives_the_grace_is_cut_off_and_told() -> None:
    records = Stage(seconds=30).open([0.0, 0.0], "--grace", "50ms")
    assert [record.error for record in records] == ["unfinished"] * 2


def test_a_closed_loop_keeps_so_many_under_way_and_sends_so_many() -> None:
    stage = Stage(seconds=0.005)
    records = stage.closed(3, "--requests", "10")
    assert stage.most == 3
    assert sorted(record.index for record in records) == list(range(10))


def test_a_stream_sends_when_its_last_answer_ended() -> None:
    records = Stage(seconds=0.01).closed(1, "--requests", "4")
    for before, after in pairwise(records):
        assert after.due == before.ended and after.sent >= before.ended


def test_a_closed_loop_ends_with_its_time() -> None:
    stage = Stage(seconds=0.01)
    records = stage.closed(2, "--seconds", "100ms")
    assert records and all(record.due < 0.1 for record in records)
    assert stage.under_way == 0


def test_streams_of_a_ramp_begin_one_after_the_other() -> None:
    records = Stage(together=4).closed(4, "--requests", "4", "--ramp", "80ms")
    assert [round(record.due, 3) for record in sorted(records, key=lambda record: record.due)] == [
        0.0,
        0.02,
        0.04,
        0.06,
    ]
    assert not any(record.measured for record in records)


def test_a_closed_loop_does_not_wait_for_ever() -> None:
    records = Stage(seconds=30).closed(2, "--seconds", "20ms", "--grace", "50ms")
    assert [record.error for record in records] == ["unfinished"] * 2
