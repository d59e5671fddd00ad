"""The ingress: the HTTP of one server over many replicas. Knows nothing of Ray."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from configs.serve import HttpConfig
from deploy.ray.affinity import digest_of
from deploy.ray.answer import FirstFailed, ForwardedAnswer, no_replica, replica_died
from deploy.ray.bodies import Bodies
from deploy.ray.forwarding import ForwardedRequest, Head, Piece, ReplicaFailed, Replicas, to_replica
from deploy.ray.last_errors import merged_errors
from deploy.ray.metrics import IngressMetrics, merged
from server.http.errors import error_response
from server.http.health import LOOK
from server.http.middleware.addresses import LOCAL, check_host, client_of_address
from server.http.responses import ClientGone, json_response, run_while_connected
from server.request_context import RequestContext, context_of
from server.requests.refusal import Refusal

FIRST_SECONDS = 60.0  # for any replica to take a request, as a server waits for its own children
SECOND_SECONDS = 10.0  # for another one, once one has failed
READY_SECONDS = 3.0  # for one replica to say that it is ready, where asking all came to nothing
LARGE = 1 << 18  # bytes of a body that are looked through beside the event loop
LIVE = ("/health", "/healthz", "/health/live")
READY = ("/ping", "/health/ready")


class Ingress:
    """What the ingress knows beside the requests that run."""

    def __init__(
        self, replicas: Replicas, config: HttpConfig, *, hosts: frozenset[str] | None, pages: Mapping[str, Response]
    ) -> None:
        """config: that of each replica's server, for bodies and the prefix of paths.

        hosts: names by which clients may call this service, beside localhost; None: any.
        pages: files for a browser by their paths.
        """
        self._replicas = replicas
        self._metrics = IngressMetrics()
        self._bodies = Bodies(config)
        self._hosts = None if hosts is None else LOCAL | hosts
        self._pages = pages
        self._prefix = config.root_path  # what a proxy leaves in front of a path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")  # the client's, or Serve's proxy's
        scope.setdefault("state", {})["context"] = RequestContext(given, method=scope["method"])
        if self._prefix is not None and scope["path"].startswith(f"{self._prefix}/"):
            scope["path"] = scope["path"].removeprefix(self._prefix)  # a replica gets the path as it came
        answer = ForwardedAnswer(scope, send)
        with self._metrics.running():
            try:
                if (probe := self._probe(scope)) is not None:
                    await answer.say(await probe(scope))
                    return
                hosts = [value for name, value in scope["headers"] if name == b"host"]
                check_host(hosts, self._hosts, scope["http_version"])
                if (own := self._own(scope)) is not None:
                    await answer.say(await own(scope))
                    return
                async with self._bodies.held(receive, client_of_address(scope["client"])) as body:
                    await run_while_connected(self._twice(await _request(scope, body), answer), receive)
            except Refusal as refusal:
                self._metrics.refused(refusal)
                await answer.refuse(refusal)
            except ClientGone:
                return

    def _probe(self, scope: Scope) -> Callable[[Scope], Awaitable[Response]] | None:
        """What monitors ask, by whatever address they have."""
        if scope["method"] not in LOOK and (scope["method"], scope["path"]) != ("POST", "/ping"):
            return None
        if scope["path"] in LIVE:
            return _live
        return self._ready if scope["path"] in READY else None

    def _own(self, scope: Scope) -> Callable[[Scope], Awaitable[Response]] | None:
        """What the ingress answers beside that by itself."""
        if scope["method"] not in LOOK:
            return None
        if scope["path"] in self._pages:
            return self._page
        return {"/metrics": self._metrics_page, "/status/errors": self._last_errors}.get(scope["path"])

    async def _ready(self, scope: Scope) -> Response:
        """200 while one replica is ready, with what that one says. It is no request, and counts as no refusal.

        A replica that dies can keep Serve from asking all of them; requests then still find the others, and so does
        this one.
        """
        asked = ForwardedRequest(method=b"GET", target=b"/health/ready", headers=[(b"host", b"localhost")])
        answers = [(head, body) for _, head, body in await self._replicas.ask_all(asked)]
        if not answers:
            answers = await self._any_answer(asked)
        if not answers:
            return error_response(no_replica(), context_of(scope).id)
        head, body = min(answers, key=lambda answer: answer[0].status)
        return Response(body, head.status, media_type="application/json")

    async def _any_answer(self, request: ForwardedRequest) -> list[tuple[Head, bytes]]:
        """A short answer of the replica that a request would get; [] where none answers soon."""
        try:
            with anyio.fail_after(READY_SECONDS):
                async with aclosing(self._replicas.forward(request)) as pieces:
                    whole = [piece async for piece in pieces]
        except (ReplicaFailed, TimeoutError):
            return []
        body = b"".join(piece for piece in whole if isinstance(piece, bytes))
        return [(piece, body) for piece in whole if isinstance(piece, Head)]

    async def _page(self, scope: Scope) -> Response:
        return self._pages[scope["path"]]

    async def _metrics_page(self, scope: Scope) -> Response:
        """Of all replicas, by the label `replica`, and of this ingress."""
        found = await self._ask_all(scope, b"/metrics")
        if isinstance(found, Response):
            return found
        pages = {name: body.decode() for name, body in found.items()}
        return Response(merged(pages) + self._metrics.page(len(pages)), media_type="text/plain; version=0.0.4")

    async def _last_errors(self, scope: Scope) -> Response:
        """Of all replicas."""
        found = await self._ask_all(scope, b"/status/errors")
        return found if isinstance(found, Response) else json_response(merged_errors(found))

    async def _ask_all(self, scope: Scope, target: bytes) -> dict[str, bytes] | Response:
        """What each replica answers, by its id; or the answer of one that decides that the key will not do."""
        headers = to_replica(scope["headers"], client_of_address(scope.get("client")), b"")
        answers = await self._replicas.ask_all(ForwardedRequest(method=b"GET", target=target, headers=headers))
        for _, head, body in answers:
            if head.status in (401, 403):
                return Response(body, head.status, {"www-authenticate": "Bearer"}, "application/json")
        return {name: body for name, head, body in answers if head.status == 200}

    async def _twice(self, request: ForwardedRequest, answer: ForwardedAnswer) -> None:
        """One replica's answer; another one's where none had begun. Raises Refusal."""
        try:
            await self._once(request, answer, FIRST_SECONDS, retry=True)
            return
        except FirstFailed as caught:
            failed = caught
        self._metrics.retried()
        second = replace(request, avoid=failed.replica or request.avoid)
        try:
            await self._once(second, answer, SECOND_SECONDS, retry=False)
            return
        except FirstFailed as caught:
            failed = caught if caught.head is not None or failed.head is None else failed
        await answer.fail(failed)

    async def _once(self, request: ForwardedRequest, answer: ForwardedAnswer, seconds: float, *, retry: bool) -> None:
        """Raises FirstFailed as long as the answer has not begun, with `retry` for an error that another may avoid.

        Raises Refusal where it has.
        """
        taken_by = ""
        async with aclosing(self._replicas.forward(request)) as pieces:
            try:
                taken_by = await _taken(pieces, seconds)
                head = await anext(pieces)
                assert isinstance(head, Head)
                await answer.take(taken_by, head, pieces, retry=retry and request.n_others != 0)
            except ReplicaFailed as failure:
                if answer.begun:
                    raise replica_died() from failure
                raise FirstFailed(taken_by) from failure


async def _request(scope: Scope, body: bytes) -> ForwardedRequest:
    headers = scope["headers"]
    look = asyncio.to_thread(digest_of, headers, body) if len(body) > LARGE else None
    path, query = scope.get("raw_path") or scope["path"].encode(), scope.get("query_string", b"")
    return ForwardedRequest(
        method=scope["method"].encode(),
        target=path + b"?" + query if query else path,
        headers=to_replica(headers, (scope.get("client") or ("",))[0], body),
        body=body,
        digest=digest_of(headers, body) if look is None else await look,
    )


async def _live(scope: Scope) -> Response:
    return json_response({"status": "live"})


async def _taken(pieces: AsyncGenerator[Piece, None], seconds: float) -> str:
    """The id of the replica that took the request. Raises FirstFailed, ReplicaFailed."""
    try:
        with anyio.fail_after(seconds):  # before Python 3.12 asyncio.wait_for may lose a cancellation
            name = await anext(pieces)
    except TimeoutError:
        raise FirstFailed("") from None
    assert isinstance(name, str)
    return name
