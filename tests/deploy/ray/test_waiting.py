"""Serve's own loop around the router: how a request waits that no replica may take, and who waits with it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.ray.forwarding import ForwardedRequest, Head, Piece
from tests.deploy.ray.fake_replicas import JSON, Exchange, FakeReplicas, ingress_over
from tests.deploy.ray.test_router import Id, asked

pytestmark = pytest.mark.ray
MOST = 5
PATIENCE = 60.0  # seconds
TOO_OFTEN = 1000  # a loop that never sleeps ends here; else nothing would end it


class Replica(SimpleNamespace):
    """As Serve's RunningReplica: it says how many requests it has, and counts how often it is asked."""

    def __init__(self, name: str, n_running: int = 0) -> None:
        super().__init__(replica_id=Id(name), routing_stats={}, max_ongoing_requests=MOST)
        self.n_running = n_running
        self.n_asked = 0

    async def get_queue_len(self, deadline_s: float) -> int:
        self.n_asked += 1
        return self.n_running


Life = Callable[[Any], Awaitable[None]]


@pytest.fixture
def live() -> Callable[[Life], None]:
    """Runs a test's life of one router as Serve makes it."""
    pytest.importorskip("ray", reason="run by `make test-ray`")
    from ray.serve._private.common import DeploymentHandleSource, DeploymentID

    from deploy.ray.router import ContentRouter

    class Counted(ContentRouter):
        n_chosen = 0
        slept: list[float]  # seconds of each sleep of the loop

        async def _backoff(self, attempt: int) -> None:
            self.slept.append(self._compute_backoff_s(attempt))
            await super()._backoff(attempt)

        async def choose_replicas(self, *args: Any, **given: Any) -> Any:
            self.n_chosen += 1
            assert self.n_chosen < TOO_OFTEN, "it never sleeps"
            return await super().choose_replicas(*args, **given)

    async def life_of(life: Life) -> None:
        router = Counted(
            DeploymentID("Replica", "app"), DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True
        )
        router.initialize_state(64)
        router.slept = []
        await life(router)

    return lambda life: asyncio.run(life_of(life))


def pending(request: ForwardedRequest, number: int = 0) -> Any:
    from ray.serve._private.common import RequestMetadata
    from ray.serve.request_router import PendingRequest

    return PendingRequest(args=[request], kwargs={}, metadata=RequestMetadata(f"{number}", f"{number}"))


async def has_slept(router: Any, task: "asyncio.Task[Any]", times: int) -> None:
    """Until the loop sleeps for so many times; what ends it earlier is raised."""

    async def wait() -> None:
        while len(router.slept) < times and not task.done():
            assert router.n_chosen < TOO_OFTEN, "it never sleeps"
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), PATIENCE)
    if task.done():
        raise AssertionError(f"it has ended: {task.result()}")


async def taken(router: Any, request: ForwardedRequest, number: int = 0) -> str:
    """The name of the replica that gets it."""
    replica = await router._choose_replica_for_request(pending(request, number))
    return str(replica.replica_id.unique_id)


def test_the_loop_sleeps_while_nobody_but_the_failed_one_is_there(live: Any) -> None:
    async def life(router: Any) -> None:
        router.update_replicas([Replica("r1")])
        waiting = asyncio.create_task(taken(router, asked(avoid="r1")))
        await has_slept(router, waiting, 4)
        assert router.n_chosen == len(router.slept) + 1, "a sleep between two looks"
        assert router.slept == sorted({*router.slept}) and router.slept[0] >= 0.02, "longer each time"
        waiting.cancel()
        await asyncio.wait([waiting])

    live(life)


def test_what_waits_for_another_replica_gets_it_once_it_comes(live: Any) -> None:
    async def life(router: Any) -> None:
        router.update_replicas([Replica("r1")])
        waiting = asyncio.create_task(taken(router, asked(avoid="r1")))
        await has_slept(router, waiting, 2)
        router.update_replicas([Replica("r1"), Replica("r2")])
        assert await asyncio.wait_for(waiting, PATIENCE) == "r2"

    live(life)


def test_what_waits_ends_when_its_client_leaves(live: Any) -> None:
    async def life(router: Any) -> None:
        router.update_replicas([Replica("r1")])
        waiting = asyncio.create_task(taken(router, asked(avoid="r1")))
        await has_slept(router, waiting, 2)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0)
        assert router.curr_num_routing_tasks == router.num_routing_tasks_in_backoff == 0

    live(life)


def test_what_waits_for_another_replica_holds_up_nobody(live: Any) -> None:
    """Of itself Serve routes two requests at once for each replica that there is; these would be those."""
    from deploy.ray.router import LEAST_ROUTED

    async def life(router: Any) -> None:
        router.update_replicas([Replica("r1")])
        waiting = [asyncio.create_task(taken(router, asked(avoid="r1"), n)) for n in range(1, LEAST_ROUTED)]
        await has_slept(router, waiting[0], LEAST_ROUTED)
        assert await asyncio.wait_for(taken(router, asked()), PATIENCE) == "r1"
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)

    live(life)


def test_replicas_that_are_full_are_asked_from_time_to_time(live: Any) -> None:
    async def life(router: Any) -> None:
        replicas = [Replica("r1", MOST), Replica("r2", MOST)]
        router.update_replicas(replicas)
        waiting = asyncio.create_task(taken(router, asked()))
        await has_slept(router, waiting, 4)
        assert all(replica.n_asked <= 2 * (len(router.slept) + 1) for replica in replicas), "twice a look"
        replicas[1].n_running -= 1
        assert await asyncio.wait_for(waiting, PATIENCE) == "r2"

    live(life)


class Routed(FakeReplicas):
    """Whoever the router names answers what stands in the script, and the request says what the router noted."""

    def __init__(self, router: Any, *scripts: Any) -> None:
        super().__init__(*scripts)
        self._router = router

    async def forward(self, request: ForwardedRequest) -> AsyncGenerator[Piece, None]:
        name = await taken(self._router, request, len(self.asked))
        self._n_others = request.n_others
        async for piece in super().forward(request):
            yield name if isinstance(piece, str) else piece


@pytest.mark.parametrize("others", [0, 1])
def test_an_error_of_the_only_replica_is_the_answer_at_once(live: Any, others: int) -> None:
    """Another one is asked where there is one."""
    failing = [Head(503, [*JSON, (b"retry-after", b"5")]), b'{"error": {"code": "engine_died"}}']

    async def life(router: Any) -> None:
        router.update_replicas([Replica(f"r{n}") for n in range(1 + others)])
        replicas = Routed(router, ("any", failing), ("any", [Head(200, JSON), b"{}"]))
        exchange = await asyncio.wait_for(Exchange().ask(ingress_over(replicas)), PATIENCE)
        assert not router.slept, "nobody is waited for"
        assert (exchange.status, len(replicas.asked)) == ((200, 2) if others else (503, 1))
        assert (b"retry-after" in exchange.headers) == (not others)

    live(life)
