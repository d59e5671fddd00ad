"""A body buys its time with its bytes."""

from configs.serve import HttpConfig
from server.http.connection.arrival import Arrival
from server.http.connection.clock import Clock
from server.requests.refusal import timed_out

CONFIG = HttpConfig(receive_seconds=30, receive_rate=1000, body_seconds=100)


def overdue(arrival: Arrival) -> bool:
    return arrival.overdue


def lags(arrival: Arrival) -> bool:
    return arrival.lags()


def test_bytes_buy_time_and_never_more_than_the_slack() -> None:
    clock = Clock()
    arrival = Arrival(CONFIG, clock)
    assert not overdue(arrival) and not lags(arrival)
    arrival.took(1 << 30)
    clock.now = 10
    assert arrival.due == 30 and lags(arrival)
    arrival.took(15_000)
    assert arrival.due == 40, "ten seconds behind, and no more than those are made good"
    assert not lags(arrival)
    clock.now = 40
    assert overdue(arrival)
    arrival.took(1000)
    assert not overdue(arrival) and lags(arrival)
    arrival.renew()
    assert arrival.due == 70 and not lags(arrival)


def test_the_whole_body_has_an_end() -> None:
    clock = Clock()
    arrival = Arrival(CONFIG, clock)
    clock.now = 99
    arrival.took(1 << 20)
    assert not overdue(arrival)
    clock.now = 100
    arrival.took(1 << 20)
    assert overdue(arrival)


def test_a_whole_body_lags_behind_nothing_and_a_refusal_is_told() -> None:
    clock, told = Clock(), []
    arrival = Arrival(CONFIG, clock, lambda: told.append("refused"))
    clock.now = 29
    assert lags(arrival)
    arrival.whole = True
    assert not lags(arrival)
    arrival.refuse(timed_out("no", "body_timeout"))
    assert told == ["refused"] and arrival.refusal is not None
