"""create_app(service): every route of the server."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server.http import errors
from server.http.connection.request_body import BodyBudget
from server.http.errors import error_response
from server.http.health import LOOK, DownloadProgress, MetricsPage, add_probe_routes, readiness
from server.http.long_texts import Raw
from server.http.middleware.keys import ApiKeys
from server.http.middleware.request_middleware import RequestMiddleware
from server.http.openapi.document_routes import add_document_routes
from server.http.pages import add_pages
from server.http.reading import BodyReader, require_json, require_plain
from server.http.responses import JsonAnswer, encoded, json_response, model_response, plain_answer, written
from server.http.routes.answer_fields import system_fingerprint
from server.http.routes.chat_completions import CompletionSerializer, read_openai
from server.http.routes.completions import TextSerializer, read_completions
from server.http.routes.messages import MessageSerializer, read_counted, read_messages
from server.http.routes.native import NativeSerializer, read_native
from server.http.routes.responses_body import read_responses
from server.http.routes.responses_events import ResponsesSerializer
from server.http.routes.tokenize import detokenized, read_detokenize, read_tokenize, token_counts
from server.http.routes.transcriptions import TranscriptSerializer, form_boundary, read_transcription
from server.metrics import Metrics
from server.request_context import RequestContext, context_of
from server.requests.answer import Emit
from server.requests.refusal import not_found
from server.requests.request import ChatRequest
from server.requests.service import RequestService
from server.requests.tool_calls import with_calls
from tokenization.chat.parts import Chat
from tokenization.text.tokenizer import most_characters


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
) -> Starlette:  # fmt: skip
    """The ASGI application. `bodies` counts the bytes of request bodies that are held; without `keys` all may ask.

    version: of Pixelferry; origins: of web pages whose scripts may read the answers, "*" for all; hosts: by which
    clients may call it, beside the names of this machine for itself, None for all; page: with those of a browser.
    """
    app = _bare_app(
        service.metrics, bodies, version, root_path, page, service.card.defaults.parameters(), traces=service.traces,
        keys=keys, hosts=hosts, origins=origins,
    )  # fmt: skip
    requests = RequestReader(service, version)
    add_chat_routes(app, requests)
    page_made, admission = MetricsPage(service, bodies).made, service.admission
    add_probe_routes(app, partial(readiness, service), page_made, lambda: admission.n_active, version, service.metrics)
    add_message_routes(app, requests)
    add_transcription_route(app, requests, origins)
    add_text_routes(app, requests)
    add_model_routes(app, requests)
    return app


def create_waiting_app(
    progress: DownloadProgress, metrics: Metrics, bodies: BodyBudget, version: str, *, root_path: str | None = None,
    page: bool = True, **options: Any,
) -> Starlette:  # fmt: skip
    """What answers while a model is downloaded: probes, /metrics, document and pages; a 503 to everything else.

    root_path, page, options: as create_app takes them.
    """
    app = _bare_app(metrics, bodies, version, root_path, page, **options)

    async def metrics_page() -> bytes:
        return metrics.render()

    add_probe_routes(app, lambda: progress.state, metrics_page, int, version, metrics)

    async def later(request: Request, _: Exception) -> Response:
        state, error = progress.state
        assert error is not None
        return error_response(error, context_of(request.scope).id, state)

    app.add_exception_handler(HTTPException, later)  # there is no such route yet
    return app


def _bare_app(
    metrics: Metrics, bodies: BodyBudget, version: str, root_path: str | None, page: bool,
    defaults: Mapping[str, float] | None = None, **options: Any,
) -> Starlette:  # fmt: skip
    """Without a route but those of its document and its pages.

    defaults: of parameters of sampling, where the checkpoint is known; options: the middleware's.
    """
    app = Starlette()
    app.router.redirect_slashes = False
    errors.install(app)
    app.add_middleware(RequestMiddleware, metrics=metrics, bodies=bodies, root_path=root_path, **options)
    add_document_routes(app, version, root_path, defaults)
    if page:
        add_pages(app, root_path)
    return app


class RequestReader:
    """What every route that takes a body needs: it reads a request, and knows the model that is served."""

    def __init__(self, service: RequestService, version: str) -> None:
        self.service = service
        self.version = version
        card = service.card
        self._bodies = BodyReader(partial(most_characters, card.tokenizer, card.max_model_len))

    async def read(
        self, http: Request, read: ReadRequest[R], *, forms_of: Collection[str] | None = None
    ) -> tuple[R, RequestContext]:
        """The request in a body; not one byte is read of one that is turned away anyhow. Raises Refusal, ChatError.

        It counts against what its key may ask for before anything of it is looked at. forms_of: the body is a form, and
        these are origins of pages that may send one; `read` takes its boundary, too. None: it is JSON.
        """
        context = context_of(http.scope)
        error = self.service.admission.refusal(context.client)
        if error is not None:
            raise error
        if context.count is not None:
            context.count()
        if codings := http.headers.getlist("content-encoding"):
            require_plain(codings)
        if forms_of is None:
            require_json(http.headers.get("content-type"))
        else:
            of_form: Any = read
            read = partial(of_form, boundary=form_boundary(http.headers, forms_of, http.url.scheme))
        body = context.body
        assert body is not None, "a request over HTTP has one"
        with body.refusable():
            request, kept = await self._bodies.read(
                http.stream(),
                self.service.max_model_len,
                partial(read, request_id=context.id),
                lambda: body.left,
                client=context.client,
                json=forms_of is None,
            )
        body.keep(kept)
        self.require_model(request.model)
        log.debug("request %s: %s, x-request-id %s", context.id, http.url.path, context.client_request_id or "none")
        return request, context

    def known(self, read: ChatRequest, context: RequestContext, *, answers: bool = True) -> ChatRequest:
        """For the model that is served, and within its HTTP request, whose answer tells what of it was left out.

        answers: it asks for an answer, which may call tools. Raises ChatError.
        """
        context.left_out = read.chat.left_out if isinstance(read.chat, Chat) else ()
        request = replace(read, context=context)
        return with_calls(request, self.service.card) if answers and read.tools is not None else request

    def require_model(self, name: str | None) -> None:
        """Raise Refusal (404) for a model that is not served here; an empty name, as none, means the one that is.

        Some load testers name it by its root.
        """
        card = self.service.card
        if name and name not in (card.name, card.root):
            raise not_found(f"this server has no such model; it serves {card.name!r}", "model", "model_not_found")

    @property
    def fingerprint(self) -> str:
        """Of what is served now; asked for a request that was admitted."""
        return system_fingerprint(self.version, self.service.card.name, self.service.ready_engine.dtype)


def add_chat_routes(app: Starlette, requests: RequestReader) -> None:
    service, card = requests.service, requests.service.card

    async def native(http: Request) -> Response:
        request = requests.known(*await requests.read(http, read_native))
        sampling = request.sampling
        serializer = NativeSerializer(
            f"chat-{request.id}", card.tokenizer, request.context, logprobs=sampling.logprobs, n=sampling.n
        )
        return model_response(partial(service.run, [request]), serializer, stream=request.stream)

    async def completions(http: Request) -> Response:
        request = requests.known(*await requests.read(http, read_openai))
        serializer = CompletionSerializer(request, card, fingerprint=requests.fingerprint)
        return model_response(partial(service.run, [request]), serializer, stream=request.stream)

    async def responses(http: Request) -> Response:
        asked, context = await requests.read(http, read_responses)
        with asked.names.told():
            asked = replace(asked, request=requests.known(asked.request, context))

        async def run(emit: Emit) -> None:
            with asked.names.told():
                await service.run([asked.request], emit)

        serializer = ResponsesSerializer(asked, card)
        return model_response(run, serializer, stream=asked.request.stream, done=b"", failed=serializer.failed)

    app.add_route("/chat", native, methods=["POST"])
    app.add_route("/v1/chat/completions", completions, methods=["POST"])
    app.add_route("/v1/responses", responses, methods=["POST"])


def add_message_routes(app: Starlette, requests: RequestReader) -> None:
    """Anthropic's."""
    service, card = requests.service, requests.service.card

    async def messages(http: Request) -> Response:
        request = requests.known(*await requests.read(http, read_messages))
        serializer = MessageSerializer(request, card.name)
        return model_response(partial(service.run, [request]), serializer, stream=request.stream, done=b"")

    async def count(http: Request) -> Response:
        read, context = await requests.read(http, read_counted)
        return JsonAnswer(partial(counted, requests.known(read, context, answers=False)))

    async def counted(request: ChatRequest) -> list[bytes]:
        return [encoded({"input_tokens": len((await service.count(request)).input_ids)})]

    app.add_route("/v1/messages", messages, methods=["POST"])
    app.add_route("/v1/messages/count_tokens", count, methods=["POST"])


def add_transcription_route(app: Starlette, requests: RequestReader, origins: Sequence[str]) -> None:
    service, card = requests.service, requests.service.card

    async def transcriptions(http: Request) -> Response:
        read: Any = partial(read_transcription, own=card.transcription)
        asked, context = await requests.read(http, read, forms_of=origins)
        request = replace(asked.request, context=context)
        run = partial(service.run, [request])
        if asked.plain and not request.stream:
            return JsonAnswer(partial(plain_answer, run), b"text/plain; charset=utf-8")
        return model_response(run, TranscriptSerializer(context), stream=request.stream)

    app.add_route("/v1/audio/transcriptions", transcriptions, methods=["POST"])


def add_text_routes(app: Starlette, requests: RequestReader) -> None:
    """Texts without a template, and ids."""
    service, card = requests.service, requests.service.card

    async def completions(http: Request) -> Response:
        read, context = await requests.read(http, read_completions)
        request = replace(read, requests=tuple([replace(prompt, context=context) for prompt in read.requests]))
        serializer = TextSerializer(request, card, fingerprint=requests.fingerprint)
        run = partial(service.run, request.requests, accepted=serializer.accepted)
        return model_response(run, serializer, stream=request.stream)

    async def tokenize(http: Request) -> Response:
        asked, context = await requests.read(http, read_tokenize)
        return JsonAnswer(partial(count, requests.known(asked.request, context, answers=False), asked.spelled))

    async def count(request: ChatRequest, spelled: bool) -> list[bytes]:
        tokenizer = card.tokenizer if spelled else None
        return await written(token_counts(await service.count(request), service.max_model_len, tokenizer))

    async def detokenize(http: Request) -> Response:
        asked, _ = await requests.read(http, read_detokenize)
        vocab_size = service.ready_engine.vocab_size
        return json_response(detokenized(asked, card.tokenizer, vocab_size, service.max_model_len))

    app.add_route("/v1/completions", completions, methods=["POST"])
    app.add_route("/tokenize", tokenize, methods=["POST"])
    app.add_route("/detokenize", detokenize, methods=["POST"])


def add_model_routes(app: Starlette, requests: RequestReader) -> None:
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

    async def models(_: Request) -> Response:
        return json_response({"object": "list", "data": [model_json()]})

    async def model(http: Request) -> Response:
        requests.require_model(http.path_params["name"])
        return json_response(model_json())

    app.add_route("/v1/models", models, methods=LOOK)
    app.add_route("/v1/models/{name:path}", model, methods=LOOK)
