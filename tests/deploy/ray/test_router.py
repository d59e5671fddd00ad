"""The router as Serve calls it, without a cluster: which replicas it names, in which order, and what it counts."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.ray.affinity import order
from deploy.ray.forwarding import ForwardedRequest

pytestmark = pytest.mark.ray
NAMES = ["r1", "r2", "r3"]


@pytest.fixture
def router() -> Any:
    """Of one deployment, by content."""
    pytest.importorskip("ray", reason="run by `make test-ray`")
    from deploy.ray.router import ContentRouter

    router = ContentRouter.__new__(ContentRouter)
    router.initialize_state()
    return router


def replica(name: str, **stats: bool) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), routing_stats=stats)


def chosen(router: Any, request: object, replicas: list[Any] | None = None) -> list[str]:
    pending = SimpleNamespace(args=[request]) if request is not None else None
    ranks = asyncio.run(router.choose_replicas(replicas or [replica(name) for name in NAMES], pending))
    assert all(len(rank) == 1 for rank in ranks)
    return [rank[0].replica_id.unique_id for rank in ranks]


def asked(**fields: Any) -> ForwardedRequest:
    return ForwardedRequest(method=b"POST", target=b"/chat", headers=[], **fields)


def test_content_decides(router: Any) -> None:
    request = asked(digest=b"d")
    assert chosen(router, request) == order(b"d", NAMES) and request.n_others == 3


def route(router: Any, name: str, request_id: str) -> None:
    pending = SimpleNamespace(metadata=SimpleNamespace(internal_request_id=request_id))
    router.on_request_routed(pending, SimpleNamespace(unique_id=name), None)


def complete(router: Any, name: str, request_id: str) -> None:
    router.on_request_completed(SimpleNamespace(unique_id=name), request_id)


def test_without_content_the_least_in_flight_is_first(router: Any) -> None:
    for n, name in enumerate(("r1", "r1", "r3")):
        route(router, name, f"id{n}")
    assert chosen(router, asked()) == ["r2", "r3", "r1"] == chosen(router, None)
    for n, name in enumerate(("r1", "r1", "r3")):
        complete(router, name, f"id{n}")
    route(router, "r2", "id0")
    assert chosen(router, asked()) == ["r1", "r3", "r2"]
    router.initialize_state(by_content=False)
    assert chosen(router, asked(digest=b"d")) == NAMES


def test_only_what_was_routed_ends(router: Any) -> None:
    """Serve tells of the end of broadcasts, and of requests that a replica rejected, which never ran there."""
    for n in range(3):
        route(router, "r1", f"id{n}")
    for n in range(5):
        complete(router, "r1", f"broadcast{n}")
    complete(router, "r2", "id0")
    route(router, "r2", "other")
    assert chosen(router, asked()) == ["r3", "r2", "r1"]
    for n in range(3):
        complete(router, "r1", f"id{n}")
        complete(router, "r1", f"id{n}")
    assert chosen(router, asked()) == ["r1", "r3", "r2"], "and ends once"


def test_a_replica_that_failed_a_request_does_not_get_it_again(router: Any) -> None:
    request = asked(digest=b"d", avoid="r2")
    assert "r2" not in chosen(router, request) and request.n_others == 2
    alone = asked(avoid="r1")
    assert chosen(router, alone, [replica("r1")]) == [] and alone.n_others == 0


def test_one_that_is_not_ready_gets_nothing_while_another_is(router: Any) -> None:
    replicas = [replica("r1", ready=False), replica("r2", ready=True), replica("r3")]
    assert chosen(router, asked(), replicas) == ["r2", "r3"]
    assert chosen(router, asked(), [replica("r1", ready=False)]) == ["r1"], "it says itself what it lacks"
