"""One request to an endpoint with fixed delays: its times, its end, and what is made of every way in which it fails."""

import asyncio
from dataclasses import replace
from time import perf_counter

import pytest

from server.loadtest.options import read_options
from server.loadtest.results.measures import Record
from server.loadtest.traffic.requests import SampleRequest
from server.loadtest.wire.connection import ConnectionPool
from server.loadtest.wire.exchange import Client
from tests.server.loadtest.fixed_delays import Delays, running

ASK = SampleRequest(3, "text", "2 words", "one two", (), 4)


def sent(delays: Delays, request: SampleRequest = ASK, *flags: str) -> Record:
    """One request; its record."""

    async def run() -> Record:
        async with running(delays) as endpoint:
            pool = ConnectionPool(endpoint.url)
            client = Client(pool, read_options(["--timeout", "20s", *flags]), started=perf_counter())
            record = await client.send(request, 0.0)
            pool.close()
            return record

    return asyncio.run(run())


@pytest.mark.parametrize("dialect", ["vllm", "openai", "llama", "native"])
def test_the_first_token_is_the_first_that_carries_content(dialect: str) -> None:
    """openai and llama send comments and a role at once; no answer can have content before its delay."""
    api = "native" if dialect == "native" else "openai"
    record = sent(Delays(first=0.05, between=0.01, dialect=dialect), ASK, "--api", api)
    assert record.error is None and record.finish == "length"
    assert record.ttft is not None and record.ttft >= 0.05
    assert record.e2el is not None and record.e2el >= 0.05 + 3 * 0.01
    assert record.tpot == pytest.approx((record.e2el - record.ttft) / 3)
    assert (record.events, len(record.gaps)) == (4, 3)
    assert sum(record.gaps) == pytest.approx(record.e2el - record.ttft)
    assert (record.prompt_tokens, record.output_tokens, record.tokens_by_events) == (7, 4, False)
    assert record.index == 3 and record.sent_bytes > 0
    assert 0 <= record.sent <= (record.first or 0) <= (record.last or 0) <= record.ended


def test_without_usage_events_are_counted() -> None:
    record = sent(Delays(first=0, between=0, usage=False), ASK, "--no-usage")
    assert (record.prompt_tokens, record.output_tokens, record.tokens_by_events) == (None, 4, True)


def test_an_answer_in_one_piece_has_no_first_token() -> None:
    record = sent(Delays(first=0.02), ASK, "--no-stream")
    assert (record.error, record.ttft, record.tpot, record.gaps, record.output_tokens) == (None, None, None, [], 4)
    assert record.e2el is not None and record.e2el >= 0.02


@pytest.mark.parametrize(
    ("delays", "error"),
    [
        (Delays(status=429), "429 queue_full"),
        (Delays(status=503), "503 queue_full"),
        (Delays(first=0, fail_after=2), "event: engine_died"),
        (Delays(first=0, cut_after=2), "ConnectionResetError|connection closed"),
    ],
)
def test_every_failure_has_a_name(delays: Delays, error: str) -> None:
    record = sent(delays)
    assert record.error is not None and record.error in error.split("|")
    assert not record.answered and not record.cancelled


def test_a_stream_that_just_ends_is_no_answer() -> None:
    record = sent(
        replace(Delays(first=0, between=0), tokens=4, usage=False),
        SampleRequest(0, "text", "", "x", (), 1),
        "--extra",
        '{"max_tokens": -1}',
    )
    assert record.error == "empty answer"


def test_what_takes_too_long_is_a_timeout() -> None:
    record = sent(Delays(first=30), ASK, "--timeout", "50ms")
    assert (record.error, record.cancelled, record.first) == ("timeout", False, None)


def test_leaving_on_purpose_is_no_error_and_the_server_sees_it() -> None:
    delays = Delays(first=0.0, between=30)
    record = sent(delays, replace(ASK, cancel_after=0.5))
    assert record.cancelled and record.error is None and not record.answered
    assert record.first is not None, "what came before is kept"
    assert delays.connections == 1, "nothing is sent a second time"


def test_an_answer_that_is_over_before_it_would_be_left_counts() -> None:
    record = sent(Delays(first=0, between=0), replace(ASK, cancel_after=10.0))
    assert record.answered and not record.cancelled


@pytest.mark.parametrize(
    ("text", "correct"),
    [("Red circle.", True), (" red circle ", True), ("red square", False), (" Red CIRCLE.\n", True)],
)
def test_known_answers_are_checked(text: str, correct: bool) -> None:
    ask = replace(ASK, max_tokens=1, expect="red circle")
    record = sent(Delays(first=0, text=text), ask)
    assert record.correct is correct and record.answer == text


def test_what_failed_is_not_called_wrong() -> None:
    assert sent(Delays(status=500), replace(ASK, expect="x")).correct is None
