"""create_app(service): every route of the server."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from server.http import errors
from server.http.answer_fields import system_fingerprint
from server.http.bodies import require_json
from server.http.clients import client_of
from server.http.completions import TextRequest, TextSerializer, read_completions
from server.http.connection.arrival import ARRIVAL, Arrival
from server.http.health import MetricsPage, readiness
from server.http.long_texts import Raw
from server.http.middleware.body_limits import KEEP, BodyBudget, BodyLimits, Keep
from server.http.middleware.envelope import Envelope
from server.http.middleware.hosts import OneHost
from server.http.middleware.keys import ApiKeys, RequireKey
from server.http.middleware.root_path import RootPath
from server.http.native import NativeSerializer, read_native
from server.http.openai import CompletionSerializer, read_openai
from server.http.reading import BodyReader, most_counts
from server.http.responses import EventStream, Serializer, json_response, json_result, whole_answer
from server.http.tokenize import detokenized, read_detokenize, read_tokenize, token_counts
from server.logs.access import tell_error
from server.requests.answer import Emit
from server.requests.refusal import not_found
from server.requests.request import ChatRequest
from server.requests.service import RequestService
from server.stopwatch import Tally

R = TypeVar("R", bound="Asked")


class Asked(Protocol):
    """What every body that asks for something says."""

    @property
    def id(self) -> str: ...

    @property
    def model(self) -> str | None: ...

    def with_tally(self: R, tally: Tally) -> R: ...


Read = Callable[[Raw, str], R]  # body, our id of the request
log = logging.getLogger("pixelferry.http")
LOOK = ["GET", "HEAD"]  # the HTTP server leaves the body of an answer to HEAD out


def create_app(
    service: RequestService, max_body_bytes: int, bodies: BodyBudget, *, version: str = "",
    keys: ApiKeys | None = None, origins: Sequence[str] = (), hosts: Sequence[str] | None = None,
    root_path: str | None = None,
) -> FastAPI:  # fmt: skip
    """The ASGI application. `bodies` counts the bytes of request bodies that are held; without `keys` all may ask.

    version: of Pixelferry; origins: of web pages whose scripts may read the answers, "*" for all; hosts: by which
    clients may call this server, beside the names of this machine for itself, None for all.
    """
    # FastAPI's own spans would double ours, and its records of errors hold messages, which may quote a request.
    app = FastAPI(
        title="Pixelferry", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False,
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )  # fmt: skip
    errors.install(app)
    app.add_middleware(BodyLimits, max_body_bytes=max_body_bytes, budget=bodies)
    if keys is not None:
        app.add_middleware(RequireKey, keys=keys)  # before a byte of a body is read
    app.add_middleware(OneHost, allowed=hosts)
    if origins:  # around those, so that a page can read their answers
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )  # fmt: skip
    app.add_middleware(
        Envelope, metrics=service.metrics, traces=service.traces
    )  # added after those: it surrounds them all
    if root_path is not None:
        app.add_middleware(RootPath, prefix=root_path)  # the outermost: all others see one path for one route
    desk = Desk(service, BodyReader(), version)
    add_chat_routes(app, desk)
    add_text_routes(app, desk)
    add_model_routes(app, desk)
    add_health_routes(app, service, bodies)
    add_probe_routes(app, service, version)
    return app


class Desk:
    """What every route that takes a body needs: it reads a request, and knows the model that is served."""

    def __init__(self, service: RequestService, reader: BodyReader, version: str) -> None:
        self.service = service
        self.version = version
        self._reader = reader

    async def read(self, http: Request, read: Read[R]) -> R:
        """The request in a body; not one byte is read of one that is turned away anyhow. Raises Refusal, ChatError."""
        error = self.service.admission.refusal()
        if error is not None:
            raise error
        require_json(http.headers.get("content-type"))
        request_id: str = http.state.request_id
        most = most_counts(self.service.max_model_len)
        body: Arrival = http.scope["state"][ARRIVAL]
        request, kept = await self._reader.read(
            http.stream(), most, lambda raw: read(raw, request_id), lambda: body.left
        )
        keep: Keep = http.scope["state"][KEEP]
        keep(kept)
        self.require_model(request.model)
        theirs = http.state.client_request_id or "none"
        log.debug("request %s: %s, x-request-id %s", request.id, http.url.path, theirs)
        tally: Tally = http.state.exchange.tally
        tally.client = client_of(http.scope)
        return request.with_tally(tally)

    def require_model(self, name: str | None) -> None:
        """Raise Refusal (404) for a model that is not served here. Some load testers name it by its root."""
        card = self.service.card
        if name is not None and name not in (card.name, card.root):
            raise not_found(f"this server has no such model; it serves {card.name!r}", "model", "model_not_found")

    @property
    def fingerprint(self) -> str:
        """Of what is served now; asked for a request that was admitted."""
        return system_fingerprint(self.version, self.service.card.name, self.service.ready_engine.dtype)


def add_chat_routes(app: FastAPI, desk: Desk) -> None:
    service, card = desk.service, desk.service.card

    def completion_serializer(request: ChatRequest) -> Serializer:
        return CompletionSerializer(request, card, fingerprint=desk.fingerprint)

    def native_serializer(request: ChatRequest) -> Serializer:
        sampling = request.sampling
        return NativeSerializer(
            f"chat-{request.id}", card.tokenizer, logprobs=sampling.logprobs, n=sampling.n, tally=request.tally
        )

    async def chat(
        http: Request, read: Read[ChatRequest], serializer_of: Callable[[ChatRequest], Serializer]
    ) -> Response:
        request = await desk.read(http, read)
        serializer = serializer_of(request)

        async def run(emit: Emit) -> None:
            await service.run([request], emit)

        return EventStream(run, serializer) if request.stream else await whole_answer(run, serializer, http.receive)

    @app.post("/chat")
    async def native(http: Request) -> Response:
        return await chat(http, read_native, native_serializer)

    @app.post("/v1/chat/completions")
    async def completions(http: Request) -> Response:
        return await chat(http, read_openai, completion_serializer)


def add_text_routes(app: FastAPI, desk: Desk) -> None:
    """Texts without a template, and ids."""
    service, card = desk.service, desk.service.card

    @app.post("/v1/completions")
    async def completions(http: Request) -> Response:
        request: TextRequest = await desk.read(http, read_completions)
        serializer = TextSerializer(request, card, fingerprint=desk.fingerprint)

        async def run(emit: Emit) -> None:
            await service.run(request.requests, emit, serializer.accepted)

        return EventStream(run, serializer) if request.stream else await whole_answer(run, serializer, http.receive)

    @app.post("/tokenize")
    async def tokenize(http: Request) -> Response:
        asked = await desk.read(http, read_tokenize)
        tokenizer = card.tokenizer if asked.spelled else None

        async def count() -> dict[str, Any]:
            return token_counts(await service.count(asked.request), service.max_model_len, tokenizer)

        return await json_result(count, http.receive)

    @app.post("/detokenize")
    async def detokenize(http: Request) -> Response:
        asked = await desk.read(http, read_detokenize)
        vocab_size = service.ready_engine.vocab_size
        return json_response(detokenized(asked, card.tokenizer, vocab_size, service.max_model_len))


def add_model_routes(app: FastAPI, desk: Desk) -> None:
    service, card = desk.service, desk.service.card

    def model_json() -> dict[str, Any]:
        return {
            "id": card.name,
            "object": "model",
            "created": card.created,
            "owned_by": "pixelferry",
            "root": card.root,
            "max_model_len": service.max_model_len,
            "architecture": {"family": card.family, "input_modalities": ["text", *sorted(card.modalities)]},
        }

    @app.api_route("/v1/models", methods=LOOK)
    async def models() -> Response:
        return json_response({"object": "list", "data": [model_json()]})

    @app.api_route("/v1/models/{name:path}", methods=LOOK)
    async def model(name: str) -> Response:
        desk.require_model(name)
        return json_response(model_json())


def add_health_routes(app: FastAPI, service: RequestService, bodies: BodyBudget) -> None:
    @app.api_route("/health", methods=LOOK)
    @app.api_route("/health/live", methods=LOOK)
    async def live() -> Response:
        return json_response({"status": "live"})

    @app.api_route("/ping", methods=[*LOOK, "POST"])
    @app.api_route("/health/ready", methods=LOOK)
    async def ready(request: Request) -> Response:
        state, error = readiness(service)
        if error is None:
            return json_response(state)
        tell_error(request.scope, errors.code_of(error))
        answer = json_response({**errors.body_of(error, request.state.request_id), **state})
        answer.status_code = errors.status_of(error)
        answer.headers.update(errors.headers_of(error))
        return answer

    page = MetricsPage(service, bodies)

    @app.api_route("/metrics", methods=LOOK)
    async def metrics() -> Response:
        return Response(await page.made(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_probe_routes(app: FastAPI, service: RequestService, version: str) -> None:
    """What gateways ask beside health, as vLLM has it."""

    @app.api_route("/version", methods=LOOK)
    async def version_of_server() -> Response:
        return json_response({"version": version})

    @app.api_route("/load", methods=LOOK)
    async def load() -> Response:
        return json_response({"server_load": service.admission.n_active})
