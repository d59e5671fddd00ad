"""Serve's request router for the replicas: by content, within a bound of load, and past the one that failed."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from deploy.ray.affinity import preferred
from deploy.ray.forwarding import ForwardedRequest

LEAST_ROUTED = 8


class ContentRouter(RequestRouter):  # type: ignore[misc]  # Ray is not installed where types are checked
    """Counts what this process has in flight at each replica: of several ingresses each knows its own share.

    Serve itself keeps out replicas that are dead or have `max_ongoing_requests`, and asks the next. It asks a replica
    that got nothing for 10 s how much it has, and passes over one that is silent for so long:
    """

    queue_len_response_deadline_s = 2.0  # Serve's own 0.1 s lost a conversation's cache wherever a processor was busy

    def initialize_state(self, most: int, by_content: bool = True) -> None:
        """most: requests that a replica's server takes at once. by_content: else least in flight, whatever is asked."""
        self._most = most
        self._by_content = by_content
        self._in_flight: Counter[str] = Counter()
        # Of a burst none is accepted before the last has chosen; what is tried again has another future.
        self._chosen: WeakKeyDictionary[asyncio.Future[Any], str] = WeakKeyDictionary()

    @property
    def max_num_routing_tasks(self) -> int:
        """Requests that Serve routes at once.

        With two for each replica alone, two that wait for another replica stop all. With Serve's bound of 50 a burst
        of streams kept the ingress from looking at its replicas.
        """
        of_serve: int = super().max_num_routing_tasks
        return max(LEAST_ROUTED, of_serve)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One rank for each replica, the best first.

        Where none takes the request, Serve asks again. Unless it is told to, it sleeps in none of its rounds.
        """
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        request = pending_request.args[0] if pending_request is not None and pending_request.args else None
        usable = {name_of(replica.replica_id): replica for replica in ready(candidate_replicas)}
        digest = b""
        if isinstance(request, ForwardedRequest):
            usable.pop(request.avoid, None)
            request.n_others = len(usable) - (0 if request.avoid else 1)
            digest = request.digest if self._by_content else b""
        chosen = Counter(self._chosen.values())
        in_flight = {name: self._in_flight[name] + chosen[name] for name in usable}
        least = sorted(in_flight, key=in_flight.__getitem__)
        names = preferred(digest, in_flight, self._most) if digest else least
        if names and pending_request is not None:
            self._chosen[pending_request.future] = names[0]
        return [[usable[name]] for name in names]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """The end is asked of the result: `on_request_completed` may come before this call, and for what never ran."""
        name = name_of(replica_id)
        self._chosen.pop(pending_request.future, None)
        self._in_flight[name] += 1
        loop = asyncio.get_running_loop()
        result.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended, name))  # from a thread of Ray's

    def _ended(self, name: str) -> None:
        self._in_flight[name] -= 1
        if self._in_flight[name] <= 0:
            del self._in_flight[name]


def name_of(replica_id: ReplicaID) -> str:
    name: str = replica_id.unique_id
    return name


def ready(replicas: Sequence[RunningReplica]) -> Sequence[RunningReplica]:
    """Those whose server answers, as each says once a second; all of them where none does."""
    return [one for one in replicas if one.routing_stats.get("ready", True)] or replicas
