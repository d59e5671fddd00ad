"""create_app(service): every route of the server."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from server.http import errors
from server.http.connection.request_body import BodyBudget
from server.http.errors import error_response
from server.http.health import LOOK, DownloadProgress, MetricsPage, add_probe_routes, readiness
from server.http.long_texts import Raw
from server.http.middleware.keys import ApiKeys
from server.http.middleware.request_middleware import RequestMiddleware
from server.http.pages import add_pages
from server.http.reading import BodyReader, require_json
from server.http.responses import JsonAnswer, json_response, model_response, written
from server.http.routes.answer_fields import system_fingerprint
from server.http.routes.chat_completions import CompletionSerializer, read_openai
from server.http.routes.completions import TextSerializer, read_completions
from server.http.routes.native import NativeSerializer, read_native
from server.http.routes.tokenize import detokenized, read_detokenize, read_tokenize, token_counts
from server.metrics import Metrics
from server.request_context import RequestContext, context_of
from server.requests.refusal import not_found
from server.requests.request import ChatRequest
from server.requests.service import RequestService
from server.requests.tool_calls import with_calls


class Asked(Protocol):
    """What every body that asks for something says."""

    @property
    def model(self) -> str | None: ...


R = TypeVar("R", bound=Asked, covariant=True)


class ReadRequest(Protocol[R]):
    """Makes a request of a body's JSON; `request_id` is ours."""

    def __call__(self, raw: Raw, request_id: str) -> R: ...


log = logging.getLogger("pixelferry.http")


def create_app(
    service: RequestService, bodies: BodyBudget, *, version: str = "", keys: ApiKeys | None = None,
    origins: Sequence[str] = (), hosts: Sequence[str] | None = None, root_path: str | None = None,
    page: bool = True,
) -> FastAPI:  # fmt: skip
    """The ASGI application. `bodies` counts the bytes of request bodies that are held; without `keys` all may ask.

    version: of Pixelferry; origins: of web pages whose scripts may read the answers, "*" for all; hosts: by which
    clients may call this server, beside the names of this machine for itself, None for all; page: whether there are
    pages for a browser.
    """
    app = _bare_app(
        service.metrics, bodies, traces=service.traces, keys=keys, hosts=hosts, origins=origins, root_path=root_path
    )
    requests = RequestReader(service, version)
    add_chat_routes(app, requests)
    metrics, admission = MetricsPage(service, bodies), service.admission
    add_probe_routes(app, partial(readiness, service), metrics.made, lambda: admission.n_active, version)
    add_text_routes(app, requests)
    add_model_routes(app, requests)
    if page:
        add_pages(app)
    return app


def create_waiting_app(
    progress: DownloadProgress, metrics: Metrics, bodies: BodyBudget, version: str, **options: Any
) -> FastAPI:
    """What answers while a model is downloaded: probes and /metrics, and a 503 to everything else.

    options: as create_app takes them.
    """
    app = _bare_app(metrics, bodies, **options)

    async def page() -> bytes:
        return metrics.render()

    add_probe_routes(app, lambda: progress.state, page, int, version)

    async def later(request: Request, _: Exception) -> Response:
        state, error = progress.state
        assert error is not None
        return error_response(error, context_of(request.scope).id, state)

    app.add_exception_handler(HTTPException, later)  # there is no such route yet
    return app


def _bare_app(metrics: Metrics, bodies: BodyBudget, **options: Any) -> FastAPI:
    """Without a route; options: the middleware's."""
    # FastAPI's own spans would double ours, and its records of errors hold messages, which may quote a request.
    app = FastAPI(
        title="Pixelferry", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False,
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )  # fmt: skip
    errors.install(app)
    app.add_middleware(RequestMiddleware, metrics=metrics, bodies=bodies, **options)
    return app


class RequestReader:
    """What every route that takes a body needs: it reads a request, and knows the model that is served."""

    def __init__(self, service: RequestService, version: str) -> None:
        self.service = service
        self.version = version
        self._bodies = BodyReader()

    async def read(self, http: Request, read: ReadRequest[R]) -> tuple[R, RequestContext]:
        """The request in a body; not one byte is read of one that is turned away anyhow. Raises Refusal, ChatError."""
        context = context_of(http.scope)
        error = self.service.admission.refusal(context.client)
        if error is not None:
            raise error
        require_json(http.headers.get("content-type"))
        body = context.body
        assert body is not None, "a request over HTTP has one"
        request, kept = await self._bodies.read(
            http.stream(), self.service.max_model_len, partial(read, request_id=context.id), lambda: body.left
        )
        body.keep(kept)
        self.require_model(request.model)
        log.debug("request %s: %s, x-request-id %s", context.id, http.url.path, context.client_request_id or "none")
        return request, context

    def require_model(self, name: str | None) -> None:
        """Raise Refusal (404) for a model that is not served here. Some load testers name it by its root."""
        card = self.service.card
        if name is not None and name not in (card.name, card.root):
            raise not_found(f"this server has no such model; it serves {card.name!r}", "model", "model_not_found")

    @property
    def fingerprint(self) -> str:
        """Of what is served now; asked for a request that was admitted."""
        return system_fingerprint(self.version, self.service.card.name, self.service.ready_engine.dtype)


def add_chat_routes(app: FastAPI, requests: RequestReader) -> None:
    service, card = requests.service, requests.service.card

    def known(read: ChatRequest, context: RequestContext) -> ChatRequest:
        request = replace(read, context=context)
        return request if read.tools is None else with_calls(request, card)

    @app.post("/chat")
    async def native(http: Request) -> Response:
        request = known(*await requests.read(http, read_native))
        context = request.context
        sampling = request.sampling
        serializer = NativeSerializer(
            f"chat-{request.id}", card.tokenizer, context, logprobs=sampling.logprobs, n=sampling.n
        )
        return model_response(partial(service.run, [request]), serializer, stream=request.stream)

    @app.post("/v1/chat/completions")
    async def completions(http: Request) -> Response:
        request = known(*await requests.read(http, read_openai))
        serializer = CompletionSerializer(request, card, fingerprint=requests.fingerprint)
        return model_response(partial(service.run, [request]), serializer, stream=request.stream)


def add_text_routes(app: FastAPI, requests: RequestReader) -> None:
    """Texts without a template, and ids."""
    service, card = requests.service, requests.service.card

    @app.post("/v1/completions")
    async def completions(http: Request) -> Response:
        request, context = await requests.read(http, read_completions)
        prompts = [replace(prompt, context=context) for prompt in request.requests]
        serializer = TextSerializer(request, card, fingerprint=requests.fingerprint)
        run = partial(service.run, prompts, accepted=serializer.accepted)
        return model_response(run, serializer, stream=request.stream)

    @app.post("/tokenize")
    async def tokenize(http: Request) -> Response:
        asked, context = await requests.read(http, read_tokenize)
        return JsonAnswer(partial(count, replace(asked.request, context=context), asked.spelled))

    async def count(request: ChatRequest, spelled: bool) -> list[bytes]:
        tokenizer = card.tokenizer if spelled else None
        return await written(token_counts(await service.count(request), service.max_model_len, tokenizer))

    @app.post("/detokenize")
    async def detokenize(http: Request) -> Response:
        asked, _ = await requests.read(http, read_detokenize)
        vocab_size = service.ready_engine.vocab_size
        return json_response(detokenized(asked, card.tokenizer, vocab_size, service.max_model_len))


def add_model_routes(app: FastAPI, requests: RequestReader) -> None:
    service, card = requests.service, requests.service.card

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
        requests.require_model(name)
        return json_response(model_json())
