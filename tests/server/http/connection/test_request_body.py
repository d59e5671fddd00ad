"""A body buys its time with its bytes, is counted as it arrives, and given back whatever happens."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from configs.serve import HttpConfig
from server.http.connection.request_body import BodyBudget, RequestBody
from server.http.connection.send_buffer import Clock
from server.http.errors import error_response
from server.metrics import Metrics
from server.request_context import context_of
from server.requests.refusal import Refusal, overloaded, timed_out
from tests.server.http.exchanges import ask, bodies, surrounded
from tests.server.tables import each_of

METRICS = Metrics("tiny", "1")
CONFIG = HttpConfig(receive_seconds=30, receive_rate=1000, body_seconds=100)


async def never() -> Any:
    await asyncio.Event().wait()


def body_of(budget: BodyBudget, on_end: Callable[[], None] = lambda: None) -> RequestBody:
    """One of which nothing has come."""
    return RequestBody(never, budget, on_end, whole=False)


def overdue(body: RequestBody) -> bool:
    return body.overdue


def lags(body: RequestBody) -> bool:
    return body.lags()


def test_bytes_buy_time_and_never_more_than_the_slack() -> None:
    clock = Clock()
    body = body_of(BodyBudget(CONFIG, clock))
    assert not overdue(body) and not lags(body)
    body.took(1 << 30)
    clock.now = 10
    assert body.due == 30 and lags(body)
    body.took(15_000)
    assert body.due == 40, "ten seconds behind, and no more than those are made good"
    assert not lags(body)
    clock.now = 40
    assert overdue(body)
    body.took(1000)
    assert not overdue(body) and lags(body)
    body.renew()
    assert body.due == 70 and not lags(body)


def test_the_whole_body_has_an_end() -> None:
    clock = Clock()
    body = body_of(BodyBudget(CONFIG, clock))
    clock.now = 99
    body.took(1 << 20)
    assert not overdue(body)
    clock.now = 100
    body.took(1 << 20)
    assert overdue(body)


def test_a_whole_body_lags_behind_nothing_and_a_refusal_is_told() -> None:
    clock, told = Clock(), []
    body = body_of(BodyBudget(CONFIG, clock), lambda: told.append("refused"))
    clock.now = 29
    assert lags(body)
    body.whole = True
    assert not lags(body)
    body.refuse(timed_out("no", "body_timeout"))
    assert told == ["refused"] and body.refusal is not None


def test_a_refusal_reaches_whoever_waits_and_a_cancellation_passes() -> None:
    async def scenario() -> None:
        body = body_of(bodies())
        waiting = asyncio.create_task(body.receive())
        await asyncio.sleep(0)
        body.refuse(timed_out("no", "body_timeout"))
        with pytest.raises(Refusal):
            await waiting
        with pytest.raises(Refusal):
            await body.receive()
        other = asyncio.create_task(body_of(bodies()).receive())
        await asyncio.sleep(0)
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other

    asyncio.run(scenario())


class Reader:
    """An app that reads the body and answers with its length, or fails; as the routes do, it answers a Refusal."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.held: list[int] = []
        self.budget = bodies(100, 1000)

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


def test_a_body_inside_the_limits_passes_and_is_counted() -> None:
    reader = Reader()
    status, _, body = ask(surrounded(reader, METRICS, reader.budget), [b"x" * 50, b"y" * 50])
    assert (status, body["error"]["message"]) == (429, "100")
    assert reader.held == [100] and reader.budget.held == 0


@each_of("headers", [{}, {b"content-length": b"101"}, {b"content-length": b"7"}])
def test_a_larger_body_is_a_413_whatever_it_announces(headers: dict[bytes, bytes]) -> None:
    reader = Reader()
    status, _, body = ask(surrounded(reader, METRICS, reader.budget), [b"x" * 60, b"y" * 41], headers)
    assert (status, body["error"]["code"]) == (413, "body_too_large")
    assert reader.held == [] and reader.budget.held == 0


@each_of(("kept", "held"), [(0, 0), (7, 7), (90, 90), (91, 90), (1 << 40, 90)])
def test_what_reading_let_go_of_is_others_at_once(kept: int, held: int) -> None:
    """What is kept counts until the answer is written, and never for more than came."""
    reader = Reader()
    seen: list[int] = []

    async def read(scope: Any, receive: Any, send: Any) -> None:
        async def counted(message: Any) -> None:
            seen.append(reader.budget.held)
            await send(message)

        await receive()
        body = context_of(scope).body
        assert body is not None
        body.keep(kept)
        body.keep(1 << 50)  # said again: nothing comes back
        await error_response(overloaded("x", "ok"), "r")(scope, receive, counted)

    other = body_of(reader.budget)
    assert reader.budget.take(other, 5)
    ask(surrounded(read, METRICS, reader.budget), [b"x" * 90])
    assert seen == [held + 5] * 2 and reader.budget.held == 5


def test_a_body_without_room_is_a_429() -> None:
    reader = Reader()
    assert reader.budget.take(body_of(reader.budget), 950)
    status, headers, body = ask(surrounded(reader, METRICS, reader.budget), [b"x" * 51])
    assert status == 429 and body["error"]["code"] == "bodies_full" and headers["retry-after"] == "1"
    assert reader.budget.held == 950


def test_what_a_request_held_is_given_back_when_it_fails() -> None:
    reader = Reader(RuntimeError("secret 0x7f /etc"))
    status, _, _ = ask(surrounded(reader, METRICS, reader.budget), [b"x"], {b"x-request-id": b"mine"})
    assert status == 500 and reader.held == [1]
    assert reader.budget.held == 0


def test_the_body_that_lags_most_gives_way_and_one_that_comes_does_not() -> None:
    clock = Clock()
    budget = BodyBudget(HttpConfig(receive_seconds=30, receive_rate=100, max_inflight_bytes=1000), clock)
    still, slow, swift, fresh = (body_of(budget) for _ in range(4))
    assert budget.take(still, 300) and budget.take(slow, 300) and budget.take(swift, 300)
    clock.now = 3
    slow.took(50)
    swift.took(300)
    assert budget.take(fresh, 200) and budget.held == 800
    assert still.refusal is not None and still.refusal.code == "bodies_full" and still.held == 0
    assert budget.take(fresh, 400) and slow.refusal is not None and budget.held == 900
    assert not budget.take(fresh, 101) and swift.refusal is None and budget.held == 900
    for body in (still, slow, swift, fresh):
        body.keep(0)
    assert budget.held == 0


def test_a_whole_body_keeps_its_room() -> None:
    budget = bodies(100, 1000)
    whole, fresh = body_of(budget), body_of(budget)
    assert budget.take(whole, 900)
    whole.whole = True
    budget.clock.now = 29
    assert not budget.take(fresh, 101) and whole.refusal is None


def test_what_one_client_fetches_leaves_as_much_for_others() -> None:
    """However many requests it makes; what ended counts no more, and a client that shares nothing has it all."""
    budget = BodyBudget(HttpConfig(max_inflight_bytes=1000), Clock())

    def fetching(client: str, nbytes: int) -> tuple[RequestBody, bool]:
        body = body_of(budget)
        body.client = client
        return body, body.hold(nbytes)

    (first, one), (second, two) = fetching("a", 300), fetching("a", 200)
    assert (one, two, budget.held) == (True, True, 500)
    assert not first.hold(1) and not fetching("a", 1)[1] and budget.held == 500
    other, fits = fetching("b", 250)
    assert fits and not other.hold(1) and fetching("c", 125)[1] and budget.held == 875
    first.keep(0)
    assert budget.held == 575 and second.hold(1) and not second.hold(200)
    assert fetching("", 400)[1] and not fetching("", 100)[1]
