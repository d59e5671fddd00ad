"""The application for Ray Serve: `serve run deploy.ray.app:app`, or `serve deploy` with deploy/ray/serve.yaml."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

import anyio
from pydantic import BaseModel
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from configs.settings import load_config
from deploy.ray.forwarding import ForwardedRequest, Head, Piece, ReplicaFailed
from deploy.ray.ingress import Ingress
from deploy.ray.replica import Replica
from deploy.ray.router import ContentRouter
from deploy.ray.server_process import LOOK_SECONDS, OURS
from server.http.pages import page_answers

INGRESS_REQUESTS = 65536  # at once: at least the sum of all replicas', or Serve's proxy holds requests back
END_SECONDS = 30.0  # beside the drain: children end, and shared memory is given back
FAILURES = (RayError, RayServeException, ReplicaFailed)


class Options(BaseModel, extra="forbid"):
    """`args` of the application in serve.yaml."""

    model: str | None = None  # as `--model` takes it; a directory need be on the nodes of replicas alone
    server: tuple[str, ...] = ()  # further flags of `pixelferry serve`, of each replica
    allowed_hosts: tuple[str, ...] | Literal["any"] = ()  # names that clients use beside localhost
    routing: Literal["content", "least_in_flight"] = "content"


class HandledReplicas:
    """The replicas behind Serve's handle; what Ray says of their deaths is ReplicaFailed."""

    def __init__(self, handle: "DeploymentHandle[Any]") -> None:
        self._handle = handle
        self._streaming = handle.options(stream=True, method_name="forward")

    async def forward(self, request: ForwardedRequest) -> AsyncGenerator[Piece, None]:
        """As Replicas has it."""
        response = self._streaming.remote(request)
        try:
            async for piece in response:
                yield piece
        except FAILURES as error:
            raise ReplicaFailed(type(error).__name__) from error
        finally:
            response.cancel()

    async def ask_all(self, request: ForwardedRequest) -> Sequence[tuple[str, Head, bytes]]:
        """As Replicas has it."""
        try:
            with anyio.fail_after(LOOK_SECONDS):
                # Not `results_async`: it has one limit for all, and loses what the others said where one hangs.
                asked = await self._handle.broadcast("look", request)._fetch_replica_results_async()
        except (*FAILURES, TimeoutError):
            return []
        answers = [asyncio.ensure_future(one.get_async()) for one in asked]
        try:
            await asyncio.wait(answers, timeout=2 * LOOK_SECONDS)
            return [answer.result() for answer in answers if answer.done() and not _failed(answer)]
        finally:
            for answer in answers:
                answer.cancel()


def _failed(answer: "asyncio.Future[Any]") -> bool:
    """Whether a replica is to blame."""
    return isinstance(answer.exception(), FAILURES)


class Front:
    """What Serve calls for each request: an ASGI application as a response that makes itself."""

    def __init__(self, replicas: "DeploymentHandle[Any]", options: Options) -> None:
        config = load_config(options.server).http
        hosts = None if options.allowed_hosts == "any" else frozenset((*options.allowed_hosts, *config.allowed_hosts))
        self._ingress = Ingress(
            HandledReplicas(replicas),
            config,
            hosts=hosts,
            pages=page_answers(config.root_path) if config.page == "on" else {},
        )

    async def __call__(self, request: Request) -> Response:
        return IngressResponse(self._ingress)


class IngressResponse(Response):
    """The ingress's answer."""

    def __init__(self, ingress: Ingress) -> None:
        super().__init__()
        self._ingress = ingress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._ingress(scope, receive, send)


def app(options: Options) -> serve.Application:
    """What `serve run` and serve.yaml name."""
    return application(options, ContentRouter)


def application(options: Options, router: type[ContentRouter]) -> serve.Application:
    """Two deployments. serve.yaml sets their numbers, their cards and what else an operator decides.

    Raises SettingsError for flags that a server would refuse, and ValueError for those that a replica sets itself.
    """
    config = load_config(options.server)
    for flag in (*OURS, "--model"):
        if any(word.partition("=")[0] == flag for word in options.server):
            raise ValueError(f"{flag}: stands in `args.model`, or each replica gives its server its own")
    flags = [*options.server, *(() if options.model is None else ("--model", options.model))]
    replicas = serve.deployment(
        Replica,
        name="Replica",
        max_ongoing_requests=config.http.max_requests + 64,  # beyond the server's own bound it says so itself
        graceful_shutdown_timeout_s=config.http.drain_seconds + END_SECONDS,
        health_check_period_s=2.0,
        health_check_timeout_s=30.0,
        request_router_config=serve.config.RequestRouterConfig(
            request_router_class=router,
            request_router_kwargs={
                "most": config.http.max_requests,
                "by_content": options.routing == "content",
            },
            request_routing_stats_period_s=1.0,
            request_routing_stats_timeout_s=10.0,
        ),
    )
    front = serve.deployment(
        Front,
        name="Ingress",
        max_ongoing_requests=INGRESS_REQUESTS,
        graceful_shutdown_timeout_s=config.http.drain_seconds + END_SECONDS,
    )
    return front.bind(replicas.bind(flags), options)
