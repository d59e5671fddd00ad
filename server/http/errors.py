"""Refusals as HTTP says them: a status, and one error body for every route."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from configs.nearest import did_you_mean
from server.request_context import context_of
from server.requests.refusal import Refusal, RefusalKind, invalid_request
from tokenization.chat.errors import ChatError, shortened

STATUS: Mapping[RefusalKind, int] = {
    "invalid_request": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "timed_out": 408,
    "body_too_large": 413,
    "encoded_body": 415,
    "head_too_large": 431,
    "overloaded": 429,
    "internal": 500,
    "unavailable": 503,
}
# The first word behind /v1 of routes that OpenAI has and this server has not.
OF_OPENAI = frozenset(
    "assistants audio batches chatkit containers conversations embeddings evals files fine_tuning images moderations "
    "organization realtime responses skills threads uploads vector_stores videos".split()
)
ANTHROPIC = "/v1/messages"  # the beginning of routes whose errors have Anthropic's types
ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
MAX_MESSAGE, MAX_PARAM = 1000, 200  # characters; our own words are fewer, a client's own may be a body


def status_of(error: Refusal) -> int:
    return STATUS[error.kind]


def body_of(error: Refusal, request_id: str) -> dict[str, Any]:
    """The JSON of a refusal; ours (5xx) carry the request's id, by which the log can be searched."""
    return _body(status_of(error), error.message, request_id, param=error.param, code=error.code)


def headers_of(error: Refusal) -> dict[str, str]:
    """Retry-After in whole seconds, at least 1, where the refusal says when to come back; how to log in at a 401, and
    how a body may be coded at a 415.
    """
    if error.kind == "encoded_body":
        return {"accept-encoding": "identity"}
    if error.kind == "unauthorized":
        return {"www-authenticate": "Bearer"}
    return {} if error.retry_after is None else {"retry-after": str(max(1, math.ceil(error.retry_after)))}


def code_of(error: Refusal) -> str:
    """What logs and metrics call it: its code, or its kind where it has none."""
    return error.code or error.kind


class ErrorResponse(Response):
    """An error as the whole answer; `code` is what logs and metrics call it."""

    media_type = "application/json"

    def __init__(self, body: dict[str, Any], status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(msgspec.json.encode(body), status_code=status, headers=headers)
        self._content = body
        self._code = code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context_of(scope).error = self._code
        if scope["path"].startswith(ANTHROPIC):
            self.body = msgspec.json.encode(in_dialect(self._content, self.status_code, scope))
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def in_dialect(body: dict[str, Any], status: int, scope: Scope) -> dict[str, Any]:
    """The body of an error as the route has it: Anthropic's say that they are one, of which type, and to what."""
    if not scope["path"].startswith(ANTHROPIC):
        return body
    error, context = {**body["error"], "type": anthropic_type(status)}, context_of(scope)
    return {"type": "error", **body, "error": error, "request_id": context.client_request_id or context.id}


def anthropic_type(status: int) -> str:
    """The `type` of an error, as Anthropic has them."""
    return ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_response(error: Refusal, request_id: str, beside: Mapping[str, Any] | None = None) -> ErrorResponse:
    """beside: what the body has, too."""
    body = {**body_of(error, request_id), **(beside or {})}
    return ErrorResponse(body, status_of(error), code_of(error), headers_of(error))


def _body(
    status: int, message: str, request_id: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The one place where an error is rendered: whatever a client's words made of it, it is short and printable."""
    message = shortened(message, MAX_MESSAGE)
    param = None if param is None else shortened(param, MAX_PARAM)
    if status >= 500:
        message = f"{message} (request {request_id})"
    return {"error": {"message": message, "type": kind_of_error(status), "param": param, "code": code}}


def kind_of_error(status: int) -> str:
    """The `type` of an error, as OpenAI has them."""
    return "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"


def install(app: Starlette) -> None:
    """One form for everything that ends with an error inside the routes; what escapes them is the middleware's."""
    for kind in (Refusal, ChatError, HTTPException):
        app.add_exception_handler(kind, answer_to)


def paths_of(app: Starlette) -> Iterator[str]:
    """Of its routes, without those that hold a name."""
    return (route.path for route in app.routes if isinstance(route, Route) and not route.param_convertors)


async def answer_to(request: Request, error: Exception) -> ErrorResponse:
    request_id = context_of(request.scope).id
    if isinstance(error, ChatError):
        error = invalid_request(error.message, error.param, error.code)
    if isinstance(error, Refusal):
        return error_response(error, request_id)
    assert isinstance(error, HTTPException), "of starlette: there is no such route, or none for this method"
    shown, status = shortened(request.scope["path"], MAX_PARAM), error.status_code
    if status == 404 and shown.startswith("/v1/") and shown.split("/")[2] in OF_OPENAI:
        # A 404 would tell LiteLLM's proxy that the model is gone: it turns every other request away for a while.
        message = f"this server does not have OpenAI's {shown}: docs/api.md lists what it has"
        return error_response(invalid_request(message, code="route_not_supported"), request_id)
    meant = did_you_mean(request.scope["path"], paths_of(request.app))
    texts = {404: f"no route {shown!r} here{meant}", 405: f"{request.method} is not allowed on {shown!r}"}
    code = {404: "route_not_found", 405: "method_not_allowed"}.get(status)
    body = _body(status, texts.get(status, str(error.detail)), request_id, code=code)
    return ErrorResponse(body, status, code or f"http_{status}", error.headers)
