"""The last errors: 50, newest first, with nothing else in them."""

from dataclasses import asdict

from server.metrics.recent_errors import KEPT, RecentErrors


def test_the_last_fifty_newest_first() -> None:
    moments = iter(range(60))
    errors = RecentErrors(clock=lambda: next(moments))
    assert errors.newest_first() == [] and KEPT == 50
    for i in range(60):
        errors.add(route="/chat", status=400 + i, code="queue_full", request_id=f"id-{i}")
    found = [asdict(one) for one in errors.newest_first()]
    assert [one["id"] for one in found] == [f"id-{i}" for i in range(59, 9, -1)]
    assert found[0] == {"time": 59, "route": "/chat", "status": 459, "code": "queue_full", "id": "id-59"}
