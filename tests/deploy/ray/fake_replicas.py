"""Replicas that answer what a test tells them to: the edge where Ray begins."""

from collections.abc import AsyncGenerator, Sequence
from types import MappingProxyType
from typing import Any

from starlette.types import Message, Scope

from configs.serve import HttpConfig
from deploy.ray.forwarding import ForwardedRequest, Head, Piece, ReplicaFailed
from deploy.ray.ingress import Ingress

JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
COMMENT = b": keep-alive\n\n"
EVENT = b'data: {"choices":[]}\n\n'

Step = Head | bytes | Exception


class FakeReplicas:
    """Each call takes the next script: (id, steps). An exception among the steps is raised there."""

    def __init__(self, *scripts: tuple[str, Sequence[Step]], n_others: int = 1) -> None:
        self.scripts = list(scripts)
        self.asked: list[ForwardedRequest] = []
        self.closed = 0
        self.pages: Sequence[tuple[str, Head, bytes]] = ()
        self._n_others = n_others

    async def forward(self, request: ForwardedRequest) -> AsyncGenerator[Piece, None]:
        self.asked.append(request)
        request.n_others = self._n_others
        name, steps = self.scripts.pop(0)
        try:
            if not name:
                raise ReplicaFailed("none took it")
            yield name
            for step in steps:
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.closed += 1

    async def ask_all(self, request: ForwardedRequest) -> Sequence[tuple[str, Head, bytes]]:
        self.asked.append(request)
        return self.pages


class Exchange:
    """One request to an ingress, and all that it sent."""

    def __init__(self, path: str = "/v1/chat/completions", method: str = "POST", *headers: tuple[bytes, bytes]) -> None:
        self.scope: Scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": b"", "client": ("203.0.113.7", 999),
            "headers": [(b"host", b"localhost"), (b"x-request-id", b"mine"), *headers],
        }  # fmt: skip
        self.sent: list[Message] = []

    async def ask(self, ingress: Ingress, *pieces: bytes, leaves: bool = False) -> "Exchange":
        """leaves: the client goes once its body is there; else it waits for the end."""
        import asyncio

        waiting = [
            {"type": "http.request", "body": piece, "more_body": i + 1 < len(pieces)} for i, piece in enumerate(pieces)
        ] or [{"type": "http.request", "body": b""}]

        async def receive() -> Message:
            if waiting:
                return waiting.pop(0)
            if not leaves:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            self.sent.append(message)

        await ingress(self.scope, receive, send)
        return self

    @property
    def status(self) -> int:
        starts = [message["status"] for message in self.sent if message["type"] == "http.response.start"]
        assert len(starts) == 1, self.sent
        status: int = starts[0]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def whole(self) -> bool:
        """Whether the answer has an end."""
        return not self.sent[-1].get("more_body", False)


def ingress_over(
    replicas: FakeReplicas, *, hosts: frozenset[str] | None = frozenset(("llm.example.com",)),
    pages: Any = MappingProxyType({}), **settings: Any,
) -> Ingress:  # fmt: skip
    """settings: fields of HttpConfig."""
    config = HttpConfig(**{"max_body_bytes": 100, "max_inflight_bytes": 150, **settings})
    return Ingress(replicas, config, hosts=hosts, pages=pages)
