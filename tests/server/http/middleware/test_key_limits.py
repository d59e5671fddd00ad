"""What one key may ask for: its bucket by a clock of the test, its places, and what an answer's headers say of both."""

from typing import Any

import pytest

from server.http.middleware.key_limits import KeyLimits, KeyPlace, duration
from server.http.middleware.keys import ApiKeys
from server.request_context import context_of
from server.requests.refusal import Refusal
from tests.server.http.exchanges import exchange, surrounded
from tests.server.http.middleware.test_keys import Clock, digest
from tests.server.tables import each_of


def taken(limits: KeyLimits, label: str = "a") -> KeyPlace:
    place = limits.place(label)
    place.take()
    return place


def refused(limits: KeyLimits, label: str = "a") -> Any:
    """Code and seconds of the refusal."""
    with pytest.raises(Refusal) as caught:
        limits.place(label).take()
    assert caught.value.kind == "overloaded"
    return caught.value.code, caught.value.retry_after


def headers(place: KeyPlace) -> list[str]:
    return [value.decode() for _, value in place.headers]


def test_a_bucket_holds_a_minute_at_once_and_refills_evenly() -> None:
    clock = Clock()
    limits = KeyLimits(6, None, clock)
    assert [headers(taken(limits))[1] for _ in range(6)] == ["5", "4", "3", "2", "1", "0"]
    assert refused(limits) == ("rate_limit_exceeded", pytest.approx(10.0))
    clock.now = 7.5
    assert refused(limits) == ("rate_limit_exceeded", pytest.approx(2.5))
    clock.now = 10.0  # what was refused took nothing
    assert headers(taken(limits)) == ["6", "0", "1m0s"]
    assert refused(limits)[1] == pytest.approx(10.0)
    clock.now = 32.5
    assert headers(taken(limits)) == ["6", "1", "47.5s"]
    clock.now = 1000.0  # it holds no more than a minute's
    assert headers(taken(limits)) == ["6", "5", "10s"]


@each_of("per_minute", [1, 7, 60, 997])
def test_so_many_pass_in_each_minute_whoever_hurries(per_minute: int) -> None:
    clock = Clock()
    limits = KeyLimits(per_minute, None, clock)
    passed = []
    for tick in range(4 * per_minute * 3 + 1):  # three minutes
        clock.now = tick * 60 / per_minute / 4
        try:
            taken(limits)
        except Refusal as error:
            assert error.retry_after is not None and 0 < error.retry_after <= 60 / per_minute + 1e-6
        else:
            passed.append(tick)
        if not tick:
            for _ in range(per_minute - 1):
                taken(limits)
            assert refused(limits)[1] == pytest.approx(60 / per_minute)
    assert passed == [0, *range(4, 4 * per_minute * 3 + 1, 4)]


def test_places_come_back_when_answers_end_and_what_is_refused_takes_no_token() -> None:
    limits = KeyLimits(4, 2, Clock())
    first, second = taken(limits), taken(limits)
    third = limits.place("a")
    with pytest.raises(Refusal) as caught:
        third.take()
    assert (caught.value.code, caught.value.retry_after) == ("concurrency_limit_exceeded", 1.0)
    assert headers(third) == headers(second) == ["4", "2", "30s"]
    third.leave()  # it had none
    assert refused(limits)[0] == "concurrency_limit_exceeded"
    first.leave()
    first.leave()
    assert headers(taken(limits)) == ["4", "1", "45s"]
    assert refused(limits)[0] == "concurrency_limit_exceeded"


def test_labels_do_not_count_for_each_other_and_are_forgotten() -> None:
    clock = Clock()
    limits = KeyLimits(1, 1, clock)
    place = taken(limits, "a")
    taken(limits, "b").leave()
    assert refused(limits, "a")[0] == "concurrency_limit_exceeded" and refused(limits, "b")[0] == "rate_limit_exceeded"
    clock.now = 61.0
    taken(limits, "c").leave()
    assert set(limits._uses) == {"a", "c"}  # whoever still has a request is not
    place.leave()
    clock.now = 122.0
    taken(limits, "d")
    assert set(limits._uses) == {"d"}


def test_a_label_that_was_forgotten_counts_all_the_same() -> None:
    """Between a request's head and its count others come: a body may take long."""
    limits = KeyLimits(60, 1, Clock())
    slow = limits.place("a")
    limits.place("b")  # whoever uses nothing is forgotten
    first = taken(limits, "a")
    with pytest.raises(Refusal):
        slow.take()
    first.leave()
    slow.take()
    assert refused(limits, "a")[0] == "concurrency_limit_exceeded"


def test_without_a_limit_of_the_rate_no_header_tells_one() -> None:
    assert taken(KeyLimits(None, 1, Clock())).headers == []


@each_of(
    ("seconds", "text"),
    [(0, "0ms"), (0.0201, "21ms"), (0.9991, "1s"), (1, "1s"), (8.64, "8.64s"), (59.9995, "1m0s"), (90.5, "1m30.5s")],
)
def test_durations_are_written_as_by_openai(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# ---- around the routes


def test_only_what_a_route_counts_is_counted_and_its_end_is_the_answers() -> None:
    """A route that does not count answers without headers; one that does holds its place until it has ended."""
    limits = KeyLimits(2, 1, Clock())
    n_active: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        context = context_of(scope)
        assert context.count is not None
        if len(n_active) < 2:
            context.count()
        n_active.append(limits.place("--api-key:1").use.n_active)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if len(n_active) == 2:
            raise RuntimeError("in the middle of its answer")
        await send({"type": "http.response.body", "body": b""})

    guarded = surrounded(app, keys=ApiKeys((digest("one"),), None, limits=limits))
    shown = []
    for _ in range(3):
        (start, *_) = exchange(guarded, [b""], {b"authorization": b"Bearer one"})
        shown.append({name: value for name, value in start["headers"] if name.startswith(b"x-ratelimit")})
    assert n_active == [1, 1, 0] and limits.place("--api-key:1").use.n_active == 0
    assert [one.get(b"x-ratelimit-remaining-requests") for one in shown] == [b"1", b"0", None]
