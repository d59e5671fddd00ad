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
from server.http.completions import TextRequest, TextSerializer, read_completions
from server.http.health import readiness
from server.http.middleware.body_limits import BodyBudget, BodyLimits
from server.http.middleware.envelope import Envelope
from server.http.middleware.keys import ApiKeys, RequireKey
from server.http.middleware.root_path import RootPath
from server.http.native import NativeSerializer, read_native
from server.http.openai import CompletionSerializer, read_openai
from server.http.responses import EventStream, Serializer, json_response, json_result, whole_answer
from server.http.tokenize import detokenized, read_detokenize, read_tokenize, token_counts
from server.logs.access import tell_error
from server.requests.answer import Emit
from server.requests.prompts import run_prompts
from server.requests.refusal import not_found
from server.requests.request import ChatRequest
from server.requests.service import RequestService
from server.stopwatch import Tally
from server.traces import Traces

R = TypeVar("R", bound="Asked")


class Asked(Protocol):
    """What every body that asks for something says."""

    @property
    def id(self) -> str: ...

    @property
    def model(self) -> str | None: ...

    def with_tally(self: R, tally: Tally) -> R: ...


Read = Callable[[bytes, str], R]  # body, our id of the request
log = logging.getLogger("pixelferry.http")
LOOK = ["GET", "HEAD"]  # the HTTP server leaves the body of an answer to HEAD out


def create_app(
    service: RequestService, max_body_bytes: int, bodies: BodyBudget, *, version: str = "",
    keys: ApiKeys | None = None, origins: Sequence[str] = (), root_path: str | None = None,
    traces: Traces | None = None,
) -> FastAPI:  # fmt: skip
    """The ASGI application. `bodies` counts the bytes of request bodies that are held; without `keys` all may ask.

    version: of Pixelferry; origins: of web pages whose scripts may read the answers, "*" for all.
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
    if origins:  # around those, so that a page can read their answers
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )  # fmt: skip
    app.add_middleware(Envelope, metrics=service.metrics, traces=traces)  # added after those: it surrounds them all
    if root_path is not None:
        app.add_middleware(RootPath, prefix=root_path)  # the outermost: all others see one path for one route
    add_chat_routes(app, service, version)
    add_text_routes(app, service, version)
    add_model_routes(app, service)
    add_health_routes(app, service, bodies)
    add_probe_routes(app, service, version)
    return app


def add_chat_routes(app: FastAPI, service: RequestService, version: str) -> None:
    card = service.card

    def completion_serializer(request: ChatRequest) -> Serializer:
        return CompletionSerializer(request, card, fingerprint=fingerprint(service, version))

    def native_serializer(request: ChatRequest) -> Serializer:
        sampling = request.sampling
        return NativeSerializer(f"chat-{request.id}", card.tokenizer, logprobs=sampling.logprobs, n=sampling.n)

    async def chat(
        http: Request, read: Read[ChatRequest], serializer_of: Callable[[ChatRequest], Serializer]
    ) -> Response:
        request = await read_request(http, service, read)
        serializer = serializer_of(request)

        async def run(emit: Emit) -> None:
            await service.run(request, emit)

        return EventStream(run, serializer) if request.stream else await whole_answer(run, serializer, http.receive)

    @app.post("/chat")
    async def native(http: Request) -> Response:
        return await chat(http, read_native, native_serializer)

    @app.post("/v1/chat/completions")
    async def completions(http: Request) -> Response:
        return await chat(http, read_openai, completion_serializer)


def add_text_routes(app: FastAPI, service: RequestService, version: str) -> None:
    """Texts without a template, and ids."""
    card = service.card

    @app.post("/v1/completions")
    async def completions(http: Request) -> Response:
        request: TextRequest = await read_request(http, service, read_completions)
        serializer = TextSerializer(request, card, fingerprint=fingerprint(service, version))

        async def run(emit: Emit) -> None:
            await run_prompts(service.run, request.requests, emit, serializer.accepted)

        return EventStream(run, serializer) if request.stream else await whole_answer(run, serializer, http.receive)

    @app.post("/tokenize")
    async def tokenize(http: Request) -> Response:
        asked = await read_request(http, service, read_tokenize)
        tokenizer = card.tokenizer if asked.spelled else None
        work = service.count(asked.request)
        return await json_result(
            work, lambda found: token_counts(found, service.max_model_len, tokenizer), http.receive
        )

    @app.post("/detokenize")
    async def detokenize(http: Request) -> Response:
        asked = await read_request(http, service, read_detokenize)
        assert service.engine.info is not None, "nothing is admitted before the first engine was ready"
        return json_response(detokenized(asked, card.tokenizer, service.engine.info.vocab_size, service.max_model_len))


def add_model_routes(app: FastAPI, service: RequestService) -> None:
    card = service.card

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
        require_model(service, name)
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

    @app.api_route("/metrics", methods=LOOK)
    async def metrics() -> Response:
        await refresh(service, bodies)
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_probe_routes(app: FastAPI, service: RequestService, version: str) -> None:
    """What gateways ask beside health, as vLLM has it."""

    @app.api_route("/version", methods=LOOK)
    async def version_of_server() -> Response:
        return json_response({"version": version})

    @app.api_route("/load", methods=LOOK)
    async def load() -> Response:
        return json_response({"server_load": service.admission.n_active})


def fingerprint(service: RequestService, version: str) -> str:
    """Of what is served now; asked for a request that was admitted."""
    assert service.engine.info is not None, "nothing is admitted before the first engine was ready"
    return system_fingerprint(version, service.card.name, service.engine.info.dtype)


async def read_request(http: Request, service: RequestService, read: Read[R]) -> R:
    """The request in a body; not one byte is read of one that is turned away anyhow. Raises Refusal, ChatError."""
    error = service.admission.refusal()
    if error is not None:
        raise error
    require_json(http.headers.get("content-type"))
    request = read(await http.body(), http.state.request_id).with_tally(http.state.exchange.tally)
    require_model(service, request.model)
    log.debug("request %s: %s, x-request-id %s", request.id, http.url.path, http.state.client_request_id or "none")
    return request


def require_model(service: RequestService, name: str | None) -> None:
    """Raise Refusal (404) for a model that is not served here. Some load testers name it by its root."""
    card = service.card
    if name is not None and name not in (card.name, card.root):
        raise not_found(f"this server has no such model; it serves {card.name!r}", "model", "model_not_found")


async def refresh(service: RequestService, bodies: BodyBudget) -> None:
    metrics = service.metrics
    metrics.set_engine(service.engine.stats if service.engine.up else None)
    metrics.set_pool(await service.segments.stats())
    metrics.set_server(
        waiting=[("worker", service.workers.n_waiting), ("place", service.engine.n_waiting)],
        children=[("worker", service.workers.n_up, len(service.workers.slots)), ("engine", int(service.engine.up), 1)],
        body_bytes=bodies.held,
        ready=readiness(service)[1] is None,
    )
