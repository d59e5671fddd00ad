"""Bodies are counted as they arrive, and given back whatever happens."""

from typing import Any

import pytest

from configs.serve import HttpConfig
from server.http.connection.arrival import Arrival
from server.http.connection.clock import Clock
from server.http.errors import error_response
from server.http.middleware.body_limits import KEEP, BodyBudget, BodyLimits
from server.http.middleware.envelope import Envelope
from server.metrics import Metrics
from server.requests.refusal import Refusal, overloaded
from tests.server.http.exchanges import ask

METRICS = Metrics("tiny", "1")


class Reader:
    """An app that reads the body and answers with its length, or fails; as the routes do, it answers a Refusal."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.held: list[int] = []
        self.budget = BodyBudget(1000)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        n, more = 0, True
        try:
            while more:
                message = await receive()
                n += len(message["body"])
                more = message["more_body"]
            self.held.append(self.budget.held)
            if self.error:
                raise self.error
            response = error_response(overloaded(str(n), "ok"), "r")
        except Refusal as error:
            response = error_response(error, "r")
        await response(scope, receive, send)


def limited(reader: Reader, max_body: int) -> Envelope:
    return Envelope(BodyLimits(reader, max_body, reader.budget), METRICS)


def test_a_body_inside_the_limits_passes_and_is_counted() -> None:
    reader = Reader()
    status, _, body = ask(limited(reader, 100), [b"x" * 50, b"y" * 50])
    assert (status, body["error"]["message"]) == (429, "100")
    assert reader.held == [100] and reader.budget.held == 0


@pytest.mark.parametrize("headers", [{}, {b"content-length": b"101"}, {b"content-length": b"7"}])
def test_a_larger_body_is_a_413_whatever_it_announces(headers: dict[bytes, bytes]) -> None:
    reader = Reader()
    status, _, body = ask(limited(reader, 100), [b"x" * 60, b"y" * 41], headers)
    assert (status, body["error"]["code"]) == (413, "body_too_large")
    assert reader.held == [] and reader.budget.held == 0


@pytest.mark.parametrize(("kept", "held"), [(0, 0), (7, 7), (90, 90), (91, 90), (1 << 40, 90)])
def test_what_reading_let_go_of_is_others_at_once(kept: int, held: int) -> None:
    """What is kept counts until the answer is written, and never for more than came."""
    reader = Reader()
    seen: list[int] = []

    async def read(scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            seen.append(reader.budget.held)
            await send(message)

        await receive()
        scope["state"][KEEP](kept)
        scope["state"][KEEP](1 << 50)  # said again: nothing comes back
        await error_response(overloaded("x", "ok"), "r")(scope, receive, counted)

    other = Arrival(HttpConfig(), Clock())
    assert reader.budget.take(other, 5)
    ask(Envelope(BodyLimits(read, 100, reader.budget), METRICS), [b"x" * 90])
    assert seen == [held + 5] * 2 and reader.budget.held == 5


def test_a_body_without_room_is_a_429() -> None:
    reader = Reader()
    assert reader.budget.take(Arrival(HttpConfig(), Clock()), 950)
    status, headers, body = ask(limited(reader, 100), [b"x" * 51])
    assert status == 429 and body["error"]["code"] == "bodies_full" and headers["retry-after"] == "1"
    assert reader.budget.held == 950


def test_what_a_request_held_is_given_back_when_it_fails() -> None:
    reader = Reader(RuntimeError("secret 0x7f /etc"))
    status, _, _ = ask(limited(reader, 100), [b"x"], {b"x-request-id": b"mine"})
    assert status == 500 and reader.held == [1]
    assert reader.budget.held == 0


def test_the_body_that_lags_most_gives_way_and_one_that_comes_does_not() -> None:
    clock, budget = Clock(), BodyBudget(1000)
    config = HttpConfig(receive_seconds=30, receive_rate=100)
    still, slow, swift, fresh = (Arrival(config, clock) for _ in range(4))
    assert budget.take(still, 300) and budget.take(slow, 300) and budget.take(swift, 300)
    clock.now = 3
    slow.took(50)
    swift.took(300)
    assert budget.take(fresh, 200) and budget.held == 800
    assert still.refusal is not None and still.refusal.code == "bodies_full" and still.held == 0
    assert budget.take(fresh, 400) and slow.refusal is not None and budget.held == 900
    assert not budget.take(fresh, 101) and swift.refusal is None and budget.held == 900
    for body in (still, slow, swift, fresh):
        budget.give_back(body)
    assert budget.held == 0


def test_a_whole_body_keeps_its_room() -> None:
    clock, budget = Clock(), BodyBudget(1000)
    whole, fresh = Arrival(HttpConfig(), clock), Arrival(HttpConfig(), clock)
    assert budget.take(whole, 900)
    whole.whole = True
    clock.now = 29
    assert not budget.take(fresh, 101) and whole.refusal is None
