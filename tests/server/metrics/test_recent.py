"""The last errors: 50 kinds, newest first, with nothing else in them; and the slowest requests of some minutes."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from server.metrics.recent import KEPT, KEPT_UNAUTHORIZED, SLOW_MINUTES, SLOWEST, RecentErrors, SlowRequests


def test_the_last_ones_newest_first() -> None:
    moments = iter(range(60))
    errors = RecentErrors(clock=lambda: next(moments))
    assert errors.newest_first() == [] and KEPT == 50
    for i in range(60):
        errors.add(route="/chat", status=400 + i, code="queue_full", request_id=f"id-{i}", authorized=True)
    found = [asdict(one) for one in errors.newest_first()]
    assert [one["id"] for one in found] == [f"id-{i}" for i in range(59, 59 - KEPT, -1)]
    assert found[0] == {"time": 59, "route": "/chat", "status": 459, "code": "queue_full", "id": "id-59", "count": 1}


def test_unauthorized_requests_do_not_hide_the_others() -> None:
    """Fifty requests without a key once drove out all that an operator was looking for."""
    errors = RecentErrors()
    for i in range(60):
        errors.add(route="/chat", status=503, code=f"engine_died-{i}", request_id=f"ours-{i}", authorized=True)
        for n in range(60):
            errors.add(route=f"/{n}", status=401, code="invalid_api_key", request_id="theirs", authorized=False)
    shown = [one.id for one in errors.newest_first()]
    assert shown == ["theirs"] * KEPT_UNAUTHORIZED + [f"ours-{i}" for i in range(59, 59 - KEPT + KEPT_UNAUTHORIZED, -1)]


def test_equal_errors_are_one_with_their_count_and_hide_no_other() -> None:
    """Fifty 405s of one run of `ab` drove out all that an operator was looking for."""
    moments = iter(range(100))
    errors = RecentErrors(clock=lambda: next(moments))
    errors.add(route="/chat", status=503, code="engine_died", request_id="first", authorized=True)
    for i in range(60):
        errors.add(route="/chat", status=405, code="method_not_allowed", request_id=f"ab-{i}", authorized=True)
    errors.add(route="/v1/models", status=405, code="method_not_allowed", request_id="other", authorized=True)
    errors.add(route="/chat", status=503, code="engine_died", request_id="again", authorized=True)
    assert [(one.id, one.count, one.time) for one in errors.newest_first()] == [
        ("again", 2, 62), ("other", 1, 61), ("ab-59", 60, 60)
    ]  # fmt: skip


def slow(requests: SlowRequests, seconds: float, name: str = "x") -> None:
    request: Any = SimpleNamespace(
        id=name, status=200, prompt_tokens=9, cached_tokens=0, media_tokens=4, generation_tokens=2
    )
    timings: Any = SimpleNamespace(stages={"prepare": seconds / 2})
    requests.add(seconds, "/chat", request, timings)


def test_the_slowest_requests_of_the_last_minutes_slowest_first() -> None:
    now = [0.0]
    requests = SlowRequests(clock=lambda: 1e9 + now[0], ticks=lambda: now[0])
    assert requests.slowest_first() == []
    for i in range(3 * SLOWEST):
        slow(requests, float(i * 7 % (3 * SLOWEST)), f"a{i}")  # each of 0 to 29 once
    most = [float(n) for n in range(3 * SLOWEST - 1, 2 * SLOWEST - 1, -1)]
    assert [one.seconds for one in requests.slowest_first()] == most
    now[0] = 60.0 * (SLOW_MINUTES - 1)
    slow(requests, 24.5, "b")
    assert [one.seconds for one in requests.slowest_first()] == sorted([*most[:-1], 24.5], reverse=True)
    now[0] = 60.0 * SLOW_MINUTES
    (left,) = requests.slowest_first()
    assert asdict(left) == {
        "time": 1e9 + 60.0 * (SLOW_MINUTES - 1), "route": "/chat", "status": 200, "id": "b", "seconds": 24.5,
        "stages": {"prepare": 12.25}, "prompt_tokens": 9, "cached_tokens": 0, "media_tokens": 4,
        "generation_tokens": 2,
    }  # fmt: skip
    slow(requests, 1.0, "c")
    assert len(requests._minutes) == 2, "minutes that are over are not kept"
    now[0] = 60.0 * 100
    assert requests.slowest_first() == []
