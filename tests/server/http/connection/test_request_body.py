"""A body buys its time with its bytes, is counted as it arrives, and given back whatever happens."""

import asyncio
import contextlib
import sys
from typing import Any

import pytest

from configs.serve import HttpConfig
from server.http.connection.request_body import FALL, BodyBudget, RequestBody
from server.http.connection.send_buffer import Clock
from server.http.errors import error_response
from server.metrics import Metrics
from server.request_context import context_of
from server.requests.refusal import Refusal, gave_way, overloaded, timed_out
from tests.server.http.exchanges import ask, bodies, body_of, surrounded
from tests.tables import each_of

METRICS = Metrics("tiny", "1")
CONFIG = HttpConfig(receive_seconds=30, receive_rate=1000, body_seconds=100)


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
    body = body_of(BodyBudget(CONFIG, clock), on_end=lambda: told.append("refused"))
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
    begun = body_of(reader.budget)
    begun.end_waiting = lambda: False
    assert begun.hold(950)
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


class Clients:
    """Bodies of several clients within 1,000 bytes, and what gave way."""

    def __init__(self) -> None:
        self.gave_way: list[str] = []
        self.budget = BodyBudget(HttpConfig(max_inflight_bytes=1000), Clock(), self.gave_way.append)

    def come(self, client: str, nbytes: int, *, whole: bool = False) -> RequestBody | None:
        """None: there is no room for it."""
        body = body_of(self.budget, client)
        body.whole = whole
        return body if body.hold(nbytes) else None

    def waiting(self, client: str, nbytes: int, *, begun: bool = False) -> RequestBody:
        """Its request waits for its first token; begun: it has that."""
        body = self.come(client, nbytes, whole=True)
        assert body is not None
        body.end_waiting = lambda: not begun
        return body


def refused(body: RequestBody | None) -> str | None:
    return None if body is None or body.refusal is None else body.refusal.code


def test_one_client_may_have_all_and_gives_way_to_one_within_its_share() -> None:
    clients = Clients()
    waits = [clients.waiting("a", 250), clients.waiting("a", 250)]
    come = [clients.come("a", 250), clients.come("a", 250)]
    assert clients.come("a", 1) is None and not clients.gave_way, "nothing gives way within a client"
    assert clients.come("b", 200) is not None and clients.budget.held == 950
    assert [refused(one) for one in come] == [None, "gave_way"], "the latest that still comes"
    assert clients.come("b", 300) is not None and refused(come[0]) == "gave_way"
    assert [one.held for one in waits] == [250, 250] and clients.gave_way == ["bodies"] * 2
    assert clients.come("b", 100) is None and clients.budget.held == 1000, "neither has more than its share"


def test_a_body_whose_request_waits_gives_way_and_one_whose_answer_has_begun_does_not() -> None:
    clients = Clients()
    waits, begun = clients.waiting("a", 400), clients.waiting("a", 400, begun=True)
    unread = clients.come("a", 200, whole=True)
    assert clients.come("b", 100) is not None and refused(unread) == "gave_way", "it was not admitted yet"
    latest = clients.come("b", 300)
    assert (waits.held, begun.held, clients.budget.held) == (0, 400, 800)
    assert clients.come("c", 300) is not None and refused(latest) == "gave_way" and begun.held == 400


def test_a_whole_body_gives_way_while_it_is_read() -> None:
    """Also when it was waited for in the same block before; a cancellation by others passes."""

    async def scenario() -> None:
        body = body_of(bodies())

        waits = asyncio.Event()

        async def read() -> None:
            with body.refusable():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(body.receive(), 0.01)
                body.whole = True
                waits.set()
                await asyncio.Event().wait()

        reading = asyncio.create_task(read())
        await waits.wait()
        body.refuse(gave_way())
        with pytest.raises(Refusal):
            await reading
        for also_refused in (False, True):
            body, waits = body_of(bodies()), asyncio.Event()
            other = asyncio.create_task(read())
            await waits.wait()
            if also_refused and sys.version_info >= (3, 11):  # only then a task counts who cancels it
                body.refuse(gave_way())
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other

    asyncio.run(scenario())


def test_who_shares_nothing_has_it_all() -> None:
    clients = Clients()
    assert clients.come("", 1000) is not None and clients.come("", 1) is None


def test_of_one_client_half_stays_to_the_end_of_answers() -> None:
    """As much of it is left for all others, however many bodies there are; what ended counts no more."""
    clients = Clients()
    first, second, third = (clients.waiting("a", nbytes) for nbytes in (237, 200, 1))
    assert first.pin(237) and second.pin(200) and not third.pin(1)
    other, more = clients.waiting("b", 219), clients.waiting("b", 1)
    assert other.pin(219) and not more.pin(1)
    assert first.pin(237) and clients.budget.pinned.total == 656, "said twice, it counts once"
    first.keep(0)
    assert third.pin(1) and more.pin(1)
    for body in (second, third, other, more):
        body.keep(0)
    assert clients.budget.pinned.total == clients.budget.held == 0


def test_however_many_clients_there_are_an_eighth_can_give_way() -> None:
    clients = Clients()
    for i in range(40):
        body, nbytes = clients.waiting(f"c{i}", 1), 1024
        while nbytes and not body.pin(nbytes):
            nbytes //= 2
    assert 800 < clients.budget.pinned.total <= 875


def test_bytes_are_given_back_before_the_end() -> None:
    clients = Clients()
    body = clients.waiting("a", 500)
    assert body.pin(400)
    body.keep(100)
    assert (body.held, clients.budget.held, clients.budget.pinned.total) == (100, 100, 100)
    body.keep(0)
    assert clients.budget.held == clients.budget.pinned.total == 0 and not clients.budget.bodies


def test_a_client_beyond_its_share_ends_no_slow_body_of_another() -> None:
    """Its own laggards alone; and one within its share takes from those beyond theirs first."""
    clients = Clients()
    slow = clients.come("b", 100)
    own, _ = clients.come("a", 100), clients.waiting("a", 600)
    clients.budget.clock.now = 3
    comes = clients.come("a", 200)
    assert comes is not None and own is not None and own.held == 100, "there was room"
    assert clients.come("a", 100) is not None and refused(own) == "bodies_full" and refused(slow) is None
    assert clients.come("a", 100) is None and refused(slow) is None
    assert clients.come("c", 300) is not None and refused(slow) is None and refused(comes) == "gave_way"


def test_of_clients_within_their_shares_a_slow_body_gives_way_last() -> None:
    clients = Clients()
    begun, slow = clients.waiting("a", 800, begun=True), clients.come("b", 150)
    clients.budget.clock.now = 3
    assert clients.come("c", 100) is not None and refused(slow) == "bodies_full" and begun.held == 800


def test_an_answer_without_an_admission_is_not_cut() -> None:
    """An error, or ids as text: it is being written."""
    clients = Clients()
    answered = clients.come("a", 900, whole=True)
    assert answered is not None
    answered.answered = True
    assert clients.come("b", 200) is None and refused(answered) is None


def test_it_is_known_when_much_is_held_no_more() -> None:
    fell: list[int] = []
    budget = BodyBudget(HttpConfig(), Clock(), fell=lambda: fell.append(budget.held))
    bodies = [body_of(budget) for _ in range(4)]
    for body in bodies:
        assert body.hold(FALL // 2)
    bodies[0].keep(0)
    assert fell == []
    bodies[1].keep(0)
    assert fell == [FALL]
    bodies[2].keep(0)
    bodies[3].keep(0)
    assert fell == [FALL, 0]
