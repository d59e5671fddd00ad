"""Serve's request router for the replicas: by content, within a bound of load, and past the one that failed."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from deploy.ray.affinity import preferred
from deploy.ray.forwarding import ForwardedRequest


class ContentRouter(RequestRouter):  # type: ignore[misc]  # Ray is not installed where types are checked
    """Counts what this process has in flight at each replica: of several ingresses each knows its own share.

    Serve itself keeps out replicas that are dead or have `max_ongoing_requests`, and asks the next.
    """

    def initialize_state(self, by_content: bool = True) -> None:
        """by_content: else least in flight, whatever is asked."""
        self._by_content = by_content
        self._in_flight: Counter[str] = Counter()
        self._routed: set[tuple[str, str]] = set()  # replica, and Serve's id of the request: what is counted

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """One rank for each replica, the best first."""
        request = pending_request.args[0] if pending_request is not None and pending_request.args else None
        usable = {name_of(replica.replica_id): replica for replica in ready(candidate_replicas)}
        digest = b""
        if isinstance(request, ForwardedRequest):
            usable.pop(request.avoid, None)
            request.n_others = len(usable)
            digest = request.digest if self._by_content else b""
        in_flight = {name: self._in_flight[name] for name in usable}
        names = preferred(digest, in_flight) if digest else sorted(in_flight, key=in_flight.__getitem__)
        return [[usable[name]] for name in names]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        name = name_of(replica_id)
        self._routed.add((name, pending_request.metadata.internal_request_id))
        self._in_flight[name] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Serve calls it for broadcasts and rejected requests, too, which it has not told as routed."""
        routed = (name_of(replica_id), internal_request_id)
        if routed not in self._routed:
            return
        self._routed.remove(routed)
        self._in_flight[routed[0]] -= 1
        if self._in_flight[routed[0]] <= 0:
            del self._in_flight[routed[0]]


def name_of(replica_id: ReplicaID) -> str:
    name: str = replica_id.unique_id
    return name


def ready(replicas: Sequence[RunningReplica]) -> Sequence[RunningReplica]:
    """Those whose server answers, as each says once a second; all of them where none does."""
    return [one for one in replicas if one.routing_stats.get("ready", True)] or replicas
