"""The router as Serve calls it, without a cluster: which replicas it names, in which order, and what it counts."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from deploy.ray.affinity import order
from deploy.ray.forwarding import ForwardedRequest

pytestmark = pytest.mark.ray
NAMES = ["r1", "r2", "r3"]
MOST = 64


@pytest.fixture
def router() -> Any:
    """Of one deployment, by content."""
    pytest.importorskip("ray", reason="run by `make test-ray`")
    from deploy.ray.router import ContentRouter

    router = ContentRouter.__new__(ContentRouter)
    router.initialize_state(MOST)
    return router


class Id(NamedTuple):
    """As Serve's ReplicaID."""

    unique_id: str


def replica(name: str, **stats: bool) -> Any:
    return SimpleNamespace(replica_id=Id(name), routing_stats=stats)


def chosen(router: Any, request: object, replicas: list[Any] | None = None) -> list[str]:
    """What is chosen for a request that then goes no further."""

    async def choose() -> list[str]:
        pending = pending_of(request) if request is not None else None
        return await names_of(router, pending, replicas or [replica(name) for name in NAMES])

    return asyncio.run(choose())


def pending_of(*args: object) -> Any:
    """As Serve's PendingRequest: a new future each time that it is tried."""
    future = asyncio.get_running_loop().create_future()
    return SimpleNamespace(args=list(args), future=future, routing_context=SimpleNamespace(should_backoff=False))


async def names_of(router: Any, pending: Any, replicas: list[Any]) -> list[str]:
    ranks = await router.choose_replicas(replicas, pending)
    assert all(len(rank) == 1 for rank in ranks)
    return [rank[0].replica_id.unique_id for rank in ranks]


class Result:
    """Of one request: a callback is called from a thread of Ray's, at once where the request has ended."""

    def __init__(self, ended: bool = False) -> None:
        self._ended = ended
        self._callbacks: list[Callable[[Any], object]] = []

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)
        if self._ended:
            self.end()

    def end(self) -> None:
        thread = threading.Thread(target=lambda: [callback(None) for callback in self._callbacks])
        thread.start()
        thread.join()


def asked(**fields: Any) -> ForwardedRequest:
    return ForwardedRequest(method=b"POST", target=b"/chat", headers=[], **fields)


def test_content_decides(router: Any) -> None:
    request = asked(digest=b"d")
    assert chosen(router, request) == order(b"d", NAMES) and request.n_others == 2


def route(router: Any, *names: str, ended: bool = False) -> list[Result]:
    """The results of requests that these replicas have accepted."""

    async def accept() -> list[Result]:
        results = [Result(ended) for _ in names]
        for name, result in zip(names, results, strict=True):
            router.on_request_routed(pending_of(), SimpleNamespace(unique_id=name), result)
        await asyncio.sleep(0)  # what a thread has said arrives
        return results

    return asyncio.run(accept())


def test_without_content_the_least_in_flight_is_first(router: Any) -> None:
    route(router, "r1", "r1", "r3")
    assert chosen(router, asked()) == ["r2", "r3", "r1"] == chosen(router, None)
    route(router, "r2", "r2", "r2")
    assert chosen(router, asked()) == ["r3", "r1", "r2"]
    router.initialize_state(MOST, by_content=False)
    assert chosen(router, asked(digest=b"d")) == NAMES


def test_a_burst_is_spread_before_any_of_it_is_accepted(router: Any) -> None:
    """By content within the bound; what then goes elsewhere or no further is counted no longer."""

    async def burst() -> None:
        replicas, first = [replica(name) for name in NAMES], Counter[str]()
        several = [pending_of(asked(digest=b"d")) for _ in range(60)]
        for pending in several:
            first[(await names_of(router, pending, replicas))[0]] += 1
        assert max(first.values()) == first[order(b"d", NAMES)[0]] == 25 and len(first) == len(NAMES)
        for pending in several[:2]:
            router.on_request_routed(pending, SimpleNamespace(unique_id="r2"), Result())
        several.clear()
        del pending
        assert await names_of(router, pending_of(asked()), replicas) == ["r1", "r3", "r2"]

    asyncio.run(burst())


def test_a_request_ends_once_and_on_the_loop(router: Any) -> None:
    """Its end may be known before Serve tells that it was routed, and is told by a thread."""

    async def life() -> None:
        results = [Result() for _ in range(2)]
        for result in results:
            router.on_request_routed(pending_of(), SimpleNamespace(unique_id="r1"), result)
        results[0].end()
        await asyncio.sleep(0)

    asyncio.run(life())
    route(router, "r2", ended=True)
    assert chosen(router, asked()) == ["r2", "r3", "r1"]
    route(router, "r2", "r3")
    assert chosen(router, asked()) == NAMES, "each has one"


def test_a_replica_that_failed_a_request_does_not_get_it_again(router: Any) -> None:
    request = asked(digest=b"d", avoid="r2")
    assert "r2" not in chosen(router, request) and request.n_others == 2
    alone = asked()
    assert chosen(router, alone, [replica("r1")]) == ["r1"] and alone.n_others == 0
    again = asked(avoid="r1")
    assert chosen(router, again, [replica("r1")]) == [] and again.n_others == 0


def test_one_that_is_not_ready_gets_nothing_while_another_is(router: Any) -> None:
    replicas = [replica("r1", ready=False), replica("r2", ready=True), replica("r3")]
    assert chosen(router, asked(), replicas) == ["r2", "r3"]
    assert chosen(router, asked(), [replica("r1", ready=False)]) == ["r1"], "it says itself what it lacks"


def test_a_replica_may_take_its_time_to_say_how_much_it_has(router: Any) -> None:
    """Serve asks the one that got nothing for long, and would pass it over, with its caches, after 0.1 s."""
    from ray.serve._private.common import DeploymentHandleSource, DeploymentID

    slow = replica("r1")
    slow.max_ongoing_requests = 5

    async def answer(deadline_s: float) -> int:
        await asyncio.sleep(0.5)
        return 0

    slow.get_queue_len = answer

    async def select() -> object:
        one = type(router)(DeploymentID("Replica", "app"), DeploymentHandleSource.REPLICA)
        one._replicas = {slow.replica_id: slow}
        return await one._select_from_candidate_replicas([slow], 0)

    assert asyncio.run(select()) is slow
