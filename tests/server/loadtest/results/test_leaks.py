"""The leak verdict: what came back, what did not, and what nobody can know."""

import pytest

from server.loadtest.results.leaks import Snapshot, idle, judge, parse_metrics, value_of, verdict, watched
from tests.server.loadtest.examples import IDLE

SLACK = 1e6


def judged(after: dict[str, float], before: dict[str, float] | None = None) -> dict[str, str]:
    """The verdict of each thing."""
    first, last = Snapshot(0.0, IDLE if before is None else before), Snapshot(10.0, after)
    return {one.name: one.verdict for one in judge(first, last, [first, last], SLACK)}


def test_a_server_that_came_back_is_clean() -> None:
    found = judged(dict(IDLE))
    assert set(found.values()) == {"clean"} and len(found) == 9


@pytest.mark.parametrize(
    ("metric", "value", "name"),
    [
        ('shm_bytes{state="leased"}', 4096.0, "leased shared memory, bytes"),
        ('shm_segments{state="leased"}', 1.0, "leased segments"),
        ("shm_path_files", 1.0, "path files"),
        ("mm_inflight_bytes", 1.0, "bytes of request bodies"),
        ("num_requests_running", 1.0, "requests in the engine"),
        ('num_requests_waiting{place="worker"}', 2.0, "requests that wait"),
        ("kv_cache_usage_perc", 0.01, "KV cache in use, share"),
        ("process_open_fds", 25.0, "open descriptors"),
        ("process_resident_memory_bytes", 82e6, "memory of the server process, bytes"),
    ],
)
def test_each_thing_that_stays_is_a_leak_of_its_own(metric: str, value: float, name: str) -> None:
    found = judged({**IDLE, metric: value})
    assert [thing for thing, said in found.items() if said == "leaked"] == [name]


@pytest.mark.parametrize(
    ("metric", "value"),
    [('shm_bytes{state="idle"}', 1e9), ("process_open_fds", 24.0), ("process_resident_memory_bytes", 80.9e6)],
)
def test_what_may_grow_is_no_leak(metric: str, value: float) -> None:
    assert "leaked" not in judged({**IDLE, metric: value}).values()


def test_what_was_held_before_is_not_held_by_the_run() -> None:
    held = {**IDLE, 'shm_bytes{state="leased"}': 4096.0}
    assert "leaked" not in judged(held, held).values()


def test_memory_that_grows_at_first_and_then_stays_is_clean() -> None:
    def at(second: float, mib: float) -> Snapshot:
        return Snapshot(second, {**IDLE, "process_resident_memory_bytes": mib * 2**20})

    def of(*sizes: float) -> str:
        line = [at(float(second), size) for second, size in enumerate(sizes)]
        return {one.name: one.verdict for one in judge(line[0], line[-1], line, SLACK)}[
            "memory of the server process, bytes"
        ]

    assert of(50, 80, 80, 80, 80) == "clean"
    assert of(50, 60, 70, 80, 90) == "leaked"


def test_files_are_looked_at_where_somebody_named_their_place() -> None:
    before, after = Snapshot(0, IDLE, files=0, file_bytes=0), Snapshot(1, IDLE, files=2, file_bytes=8192)
    found = {one.name: one for one in judge(before, after, [], SLACK)}
    assert found["files in shared memory"].verdict == "leaked"
    assert found["files in shared memory"].says == "2 files, 8,192 bytes"
    assert verdict(list(found.values())) == "leaked"


def test_a_server_that_tells_nothing_is_not_called_clean() -> None:
    found = judge(Snapshot(), Snapshot(), [], SLACK)
    assert verdict(found) == "unknown"


def test_another_server_is_judged_by_what_it_tells() -> None:
    theirs = {"num_requests_running": 0.0, "num_requests_waiting": 0.0}
    found = judged(theirs, theirs)
    assert found["requests in the engine"] == "clean" and found["leased shared memory, bytes"] == "unknown"


def test_a_timeline_keeps_what_is_judged_and_nothing_else() -> None:
    assert watched({**IDLE, 'http_requests_total{status="200"}': 5.0, "shm_bytes_capacity": 1.0}) == IDLE


def test_metrics_are_parsed_by_name_and_labels() -> None:
    text = """# HELP pixelferry:shm_bytes Shared memory
# TYPE pixelferry:shm_bytes gauge
pixelferry:shm_bytes{state="leased"} 4096.0
pixelferry:num_requests_waiting{model_name="a:b",place="worker"} 2.0
pixelferry:num_requests_waiting{model_name="a:b",place="engine"} 3.0
vllm:num_requests_running{engine="0"} 1.0
process_open_fds 21.0
odd NaN1
"""
    found = parse_metrics(text)
    assert value_of(found, "shm_bytes", 'state="leased"') == 4096
    assert value_of(found, "shm_bytes", 'state="idle"') is None
    assert value_of(found, "num_requests_waiting") == 5
    assert value_of(found, "num_requests_running") == 1
    assert value_of(found, "process_open_fds") == 21
    assert value_of(found, "odd") is None
    assert not idle(Snapshot(0, found)) and idle(Snapshot(0, IDLE)) and idle(Snapshot())
