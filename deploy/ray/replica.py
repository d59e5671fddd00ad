"""A replica: one whole Pixelferry server, which answers what the ingress hands on."""

from collections.abc import AsyncIterator, Sequence

import httpcore2
from ray import serve

from deploy.ray.forwarding import ForwardedRequest, Head, Piece, ReplicaFailed
from deploy.ray.server_process import LOST, SILENT_SECONDS, ServerProcess, lowered, start


class Replica:
    """What Serve calls: its start, its health, its requests, its end."""

    async def __init__(self, flags: Sequence[str]) -> None:  # type: ignore[misc]  # Serve awaits it
        """Up once the server says that it is ready, so that a model that loads gets no request."""
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._server: ServerProcess = start(flags, self._name)
        await self._server.ready()

    async def forward(self, request: ForwardedRequest) -> AsyncIterator[Piece]:
        """Who answers, the head, then the body as it comes. Cancelled, the connection closes, as a client's that left.

        Raises ReplicaFailed.
        """
        yield self._name
        server = self._server
        asked = httpcore2.Request(
            request.method, server.url(request.target), headers=request.headers, content=request.body
        )
        try:
            response = await server.connections.handle_async_request(asked)
            try:
                yield Head(response.status, lowered(response.headers))
                async for chunk in response.aiter_stream():
                    yield chunk
            finally:
                await response.aclose()
        except LOST as error:
            raise ReplicaFailed(f"{self._name}: {error!r}") from None

    async def look(self, request: ForwardedRequest) -> tuple[str, Head, bytes]:
        """A short answer for one of all replicas. Raises ReplicaFailed."""
        try:
            return self._name, *await self._server.get(request.target, request.headers)
        except LOST as error:
            raise ReplicaFailed(f"{self._name}: {error!r}") from None

    async def pid(self) -> tuple[str, int]:
        """The server's process, for an operator who looks for it."""
        return self._name, self._server.pid

    async def record_routing_stats(self) -> dict[str, bool]:
        """What the router asks every second: a server whose engine hangs gets nothing while others work.

        A busy one keeps its conversations: it has time to say that it is ready.
        """
        return {"ready": await self._server.answers(b"/health/ready", SILENT_SECONDS)}

    async def check_health(self) -> None:
        """Raises ServerEnded: Serve then starts another replica. A server that answers mends its own children."""
        await self._server.check_live()

    async def __del__(self) -> None:
        """Serve awaits it once no request runs here any more, and before it kills this process."""
        if hasattr(self, "_server"):
            await self._server.end()
