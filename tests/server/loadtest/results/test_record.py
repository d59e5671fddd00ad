"""The times of one request."""

import pytest

from server.loadtest.results.record import Record
from tests.server.loadtest.results.test_measures import record


def test_latencies_of_one_request() -> None:
    one = record(sent=2.0, first=0.25, last=1.0, tokens=4, due=1.5)
    assert (one.wait, one.ttft, one.e2el) == (0.5, 0.25, 1.0)
    assert one.tpot == pytest.approx(0.75 / 3)


def test_who_has_no_second_token_has_no_time_per_token() -> None:
    assert record(tokens=1, last=0.1).tpot is None
    assert record(first=0.1, output_tokens=None).tpot is None
    silent = Record(index=0)
    assert (silent.ttft, silent.tpot, silent.e2el) == (None, None, None)
