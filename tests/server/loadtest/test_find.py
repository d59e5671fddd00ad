"""`--find` as it is typed, beside a server with one queue and a fixed time of service, on the simulated clock."""

import asyncio

import pytest

from server.loadtest.find import CapacityTest
from server.loadtest.options import read_options
from server.loadtest.results.capacity import FOUND, NONE, UNCLEAR
from server.loadtest.results.result import RunResult
from tests.server.loadtest.driving.test_search import SERVICE, true_capacity
from tests.server.loadtest.fixed_delays import Delays, running
from tests.server.loadtest.simulated_clock import run_simulated
from tests.tables import each_of

Captured = pytest.CaptureFixture[str]


def find(objective: str, *flags: str, service: float = SERVICE) -> tuple[RunResult, float]:
    """A search, and how many seconds it took."""

    async def go() -> tuple[RunResult, float]:
        async with running(Delays(first=service, one_queue=True)) as endpoint:
            words = ["--quiet", "--url", endpoint.url, "--settle", "0", "--max-tokens", "1", "--metrics", "none"]
            options, began = read_options([*words, "--find", objective, *flags]), asyncio.get_running_loop().time()
            result = await CapacityTest(options).run(asyncio.Event())
            return result, asyncio.get_running_loop().time() - began

    return run_simulated(go())


def held(result: RunResult, true: float) -> bool:
    assert result.capacity is not None
    return (result.capacity.low or 0.0) <= true <= (result.capacity.high or 1e9)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_true_capacity_lies_in_the_interval_in_eighteen_of_twenty_runs() -> None:
    found = [find("ttft.p90<=1s", "--find-within", "5h", "--seed", str(seed))[0] for seed in range(20)]
    capacities = [one.capacity for one in found if one.capacity is not None]
    print("\n", true_capacity(1.0, 0.1), [(one.low, one.high, one.verdict) for one in capacities])
    assert sum(held(one, true_capacity(1.0, 0.1)) for one in found) >= 18
    assert sum(one.verdict != FOUND for one in capacities) <= 2
    assert all(one.high <= 1.25 * one.low for one in capacities if one.verdict == FOUND and one.low and one.high)


def test_a_search_that_has_no_more_time_ends_as_its_pilot_said(capsys: Captured) -> None:
    result, seconds = find("ttft.p99<=1s", "--find-within", "8s")
    assert result.capacity is not None and result.capacity.forecast is not None
    assert seconds <= result.capacity.forecast.most_seconds == 28
    assert result.capacity.verdict == UNCLEAR and result.unclear and not result.failures
    said = capsys.readouterr().err
    assert "ttft.p99<=1s needs repeats of 500 requests" in said and "it ends within 28 s" in said
    assert "A lower percentile needs fewer requests" in said
    assert {one.label for one in result.steps} >= {"pilot, 1 stream", "20 req/s poisson, repeat 1"}
    prompts = [record.index for record in result.steps[1].records]
    assert len(set(prompts)) == len(prompts)


def test_a_server_that_is_too_slow_alone_has_no_capacity() -> None:
    result, _ = find("ttft.p50<=500ms", service=1.0)
    assert result.capacity is not None and result.capacity.verdict == NONE
    assert result.failures == ["no load keeps ttft.p50<=500ms: one request at a time takes 1 s in the median"]


def test_an_objective_that_no_answer_has_is_told() -> None:
    result, _ = find("ttft.p50<=500ms", "--no-stream")
    assert result.failures == ["no load keeps ttft.p50<=500ms: one request at a time has no ttft"]


@each_of(
    ("flags", "said"),
    [
        (["--find", "ttft.p99<=1s", "--rate", "2"], "not with --rate"),
        (["--find", "ttft.p99<=1s", "--slo", "ttft=1s"], "not with --slo"),
        (["--find", "ttft.mean<=1s"], "wanted is a percentile"),
        (["--find", "ttft.p99>=1s"], "wanted is a percentile"),
        (["--find", "itl.p99<=1s"], "wanted is a percentile"),
        (["--find", "errors<=1%"], "wanted is a percentile"),
        (["--find", "ttft.p10<=1s"], "wanted is a percentile"),
    ],
)
def test_what_cannot_be_searched_is_wrong_usage(flags: list[str], said: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as end:
        read_options(flags)
    assert end.value.code == 2 and said in capsys.readouterr().err
