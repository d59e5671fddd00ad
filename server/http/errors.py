"""What may go wrong, as HTTP says it: status, and one error body for every route. Knows no requests."""

import math
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tokenization.chat.errors import ChatError


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """What stands under "error" in every answer that is not a success."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The whole answer."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": fields}


class ServeError(Exception):
    """An answer that is not a success. Its message goes to the client: no paths, no segment names, no addresses."""

    def __init__(self, status: int, body: ErrorBody, retry_after: float | None = None) -> None:
        super().__init__(body.message)
        self.status = status
        self.body = body
        self.retry_after = retry_after  # seconds; None sends no header


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ServeError:
    """400: the client's chat or parameters; `param` is the path of the offending field."""
    return ServeError(400, ErrorBody(message=message, type="invalid_request_error", param=param, code=code))


def not_found(message: str, param: str | None = None, code: str | None = None) -> ServeError:
    """404: no such model or route."""
    return ServeError(404, ErrorBody(message=message, type="invalid_request_error", param=param, code=code))


def too_large(limit: int) -> ServeError:
    """413: the body has more than `limit` bytes."""
    message = f"the request body is larger than this server's limit of {limit} bytes"
    return ServeError(413, ErrorBody(message=message, type="invalid_request_error", code="body_too_large"))


def too_many(message: str, code: str, retry_after: float = 1.0) -> ServeError:
    """429: the queue or a memory budget is full; the same request may succeed later."""
    return ServeError(429, ErrorBody(message=message, type="rate_limit_error", code=code), retry_after)


def unavailable(message: str, code: str, retry_after: float = 1.0) -> ServeError:
    """503: a process that the request needs is not there."""
    return ServeError(503, ErrorBody(message=message, type="server_error", code=code), retry_after)


def internal(message: str, code: str = "internal") -> ServeError:
    """500: ours."""
    return ServeError(500, ErrorBody(message=message, type="server_error", code=code))


def from_chat_error(error: ChatError) -> ServeError:
    """A chat that cannot be read is a 400 that names its part."""
    return bad_request(error.message, error.param)


def body_of(error: ServeError, request_id: str) -> dict[str, Any]:
    """The JSON of an error; ours (5xx) carry the request's id, by which the log can be searched."""
    body = error.body
    if error.status >= 500:
        message = f"{body.message} (request {request_id})"
        body = ErrorBody(message=message, type=body.type, param=body.param, code=body.code)
    return body.as_json()


def headers_of(error: ServeError) -> dict[str, str]:
    """Retry-After in whole seconds, at least 1, where the error says when to come back."""
    return {} if error.retry_after is None else {"retry-after": str(max(1, math.ceil(error.retry_after)))}


def error_response(error: ServeError, request_id: str) -> JSONResponse:
    """The answer to a request that ended with `error`."""
    return JSONResponse(body_of(error, request_id), status_code=error.status, headers=headers_of(error))


def path_of(loc: tuple[str | int, ...]) -> str:
    """A validator's location as the path of a field: ("messages", 1, "role") -> "messages[1].role"."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def install(app: FastAPI) -> None:
    """One form for everything that ends with an error inside the routes; what escapes them is the envelope's."""

    async def on_serve_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServeError)
        return error_response(error, request.state.request_id)

    async def on_chat_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ChatError)
        return error_response(from_chat_error(error), request.state.request_id)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.scope["path"]
        texts = {404: f"no route {path!r} here", 405: f"{request.method} is not allowed on {path!r}"}
        codes = {404: "route_not_found", 405: "method_not_allowed"}
        message = texts.get(error.status_code, str(error.detail))
        kind = "invalid_request_error" if error.status_code < 500 else "server_error"
        body = ErrorBody(message=message, type=kind, code=codes.get(error.status_code))
        response = error_response(ServeError(error.status_code, body), request.state.request_id)
        response.headers.update(error.headers or {})
        return response

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return error_response(bad_request(first["msg"], path_of(first["loc"])), request.state.request_id)

    app.add_exception_handler(ServeError, on_serve_error)
    app.add_exception_handler(ChatError, on_chat_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
