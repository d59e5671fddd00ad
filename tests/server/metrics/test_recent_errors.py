"""The last errors: 50, newest first, with nothing else in them."""

from dataclasses import asdict

from server.metrics.recent_errors import KEPT, KEPT_UNAUTHORIZED, RecentErrors


def test_the_last_ones_newest_first() -> None:
    moments = iter(range(60))
    errors = RecentErrors(clock=lambda: next(moments))
    assert errors.newest_first() == [] and KEPT == 50
    for i in range(60):
        errors.add(route="/chat", status=400 + i, code="queue_full", request_id=f"id-{i}", authorized=True)
    found = [asdict(one) for one in errors.newest_first()]
    assert [one["id"] for one in found] == [f"id-{i}" for i in range(59, 59 - KEPT, -1)]
    assert found[0] == {"time": 59, "route": "/chat", "status": 459, "code": "queue_full", "id": "id-59"}


def test_unauthorized_requests_do_not_hide_the_others() -> None:
    """Fifty requests without a key once drove out all that an operator was looking for."""
    errors = RecentErrors()
    for i in range(60):
        errors.add(route="/chat", status=503, code="engine_died", request_id=f"ours-{i}", authorized=True)
        for _ in range(60):
            errors.add(route="unmatched", status=401, code="invalid_api_key", request_id="theirs", authorized=False)
    shown = [one.id for one in errors.newest_first()]
    assert shown == ["theirs"] * KEPT_UNAUTHORIZED + [f"ours-{i}" for i in range(59, 59 - KEPT + KEPT_UNAUTHORIZED, -1)]
