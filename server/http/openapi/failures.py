"""Every error that a route may answer: its status, its codes and what each one says."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from server.http.errors import MAX_PARAM, anthropic_type, kind_of_error
from server.http.middleware.key_limits import RATE_HEADERS
from server.http.openapi.answers import AnswerPart

# By status, what it means and its codes; "" is null. The codes of server/metrics/codes.py stand here or below.
FAILURES: Mapping[int, tuple[str, Mapping[str, str]]] = {
    400: (
        "The chat, a field or the head of the request is wrong; `param` names the field.",
        {
            "": "a field has a value that is not taken",
            "asks_too_much": "it asks for more tokens or bytes than a body may",
            "context_length_exceeded": "the prompt leaves no room for an answer",
            "cors_refused": "a browser asked whether a page of another origin may",
            "form_too_large": "the form of the answer is too large",
            "http_version": "this server speaks HTTP/1.0 and 1.1",
            "invalid_form": "the body is no `multipart/form-data`, or has a field twice",
            "invalid_host": "a request has one `Host`",
            "invalid_json": "the body is not JSON, or not an object",
            "media_fetch_failed": "a medium could not be fetched from its URL",
            "media_too_costly": "a medium announces more work than its bytes can hold",
            "media_too_large": "a medium is larger than a bound of this server",
            "media_url_forbidden": "nothing is fetched from there (`--allowed-media-domain`)",
            "route_not_supported": "OpenAI has the route, this server has not",
            "structured_output": "the answer cannot be held to its form",
            "too_many_parts": "more turns, parts, frames and calls than the model has room for",
            "too_many_values": "the body holds more than a prompt can use",
            "took_too_long": "a worker was killed over it",
            "unknown_field": "there is no such field",
            "unknown_parameter": "there is no such parameter",
            "unsupported_media_type": "the Content-Type is not that of the route's bodies",
            "unsupported_modality": "the model does not take such media",
            "unsupported_parameter": "the field is known, and not supported",
            "worker_memory": "preparing it takes more memory than a worker has",
        },
    ),
    401: (
        "The server has API keys, and none of them came with the request.",
        {"invalid_api_key": "see `WWW-Authenticate`"},
    ),
    403: (
        "Whoever asks is not answered in this way.",
        {
            "host_not_allowed": "the `Host` is no name of this server",
            "origin_not_allowed": "a form comes from a page that may not send it (`--allowed-origins`)",
        },
    ),
    404: (
        "No such route or model.",
        {"model_not_found": "another model is served", "route_not_found": "there is no such route"},
    ),
    405: ("The route has other methods.", {"method_not_allowed": "see `Allow`"}),
    408: (
        "The request came too slowly; the connection is closed.",
        {"body_timeout": "its body did", "head_timeout": "its head did"},
    ),
    413: ("The body is too large.", {"body_too_large": "larger than `--max-body-mib`"}),
    415: ("The body is compressed.", {"unsupported_encoding": "a `Content-Encoding` other than `identity`"}),
    429: (
        "Too much is asked for at once; `Retry-After` says when to come back.",
        {
            "bodies_full": "too many bytes of bodies are held (`--max-inflight-mib`)",
            "concurrency_limit_exceeded": "the key has too many requests unanswered (`--key-concurrency`)",
            "gave_way": "others asked for their share, and this client had more than its own",
            "memory_full": "no shared memory is left now (`--shm-mib`)",
            "queue_full": "too many requests are here (`--max-requests`)",
            "rate_limit_exceeded": "the key made too many requests a minute (`--key-requests-per-minute`)",
        },
    ),
    431: (
        "The request line and headers are too large; the connection may be closed.",
        {"head_too_large": "larger than `--max-head-kib`, too many fields, or a field that is too long to be read"},
    ),
    500: (
        "A defect of the server's; the message names the request's id.",
        {"internal": "it failed", "worker_died": "two workers died of it"},
    ),
    503: (
        "The server cannot answer now; `Retry-After` says when to come back.",
        {
            "broken": "a process that the server needs fails again and again",
            "connections_full": "all connections are busy (`--max-connections`)",
            "downloading": "the model is being downloaded",
            "engine_died": "the engine ended with the request inside",
            "engine_down": "the engine is being started again",
            "engine_stuck": "the engine gave no token to a request of the server's own",
            "fetcher_died": "the process that fetches media ended",
            "fetcher_down": "the process that fetches media is being started again",
            "loading": "the model is still loading",
            "media_unavailable": "the media were removed from shared memory",
            "no_process": "the machine has no process or memory left to compile a form",
            "shm_gone": "the shared memory was removed",
            "stopping": "the server stops",
            "workers_down": "the workers are being started again",
        },
    ),
}
# Codes of logs and of `mm_rejected` on /metrics: the connection is closed without an answer, or a code is null there.
UNANSWERED: Mapping[str, str] = {
    "cut_off": "the server ended before the answer did",
    "invalid_request": "an error 400 whose code is null",
    "unread": "the client did not take its answer in time",
    "unread_full": "clients left too many bytes of answers unread, this one the most",
}
RATES: Mapping[str, Any] = {
    name: {"description": f"{told}, where keys have such limits.", "schema": {"type": "string"}}
    for name, told in zip(
        RATE_HEADERS,
        ("Requests a minute of the key", "Of them, those that are left now", "When all are there again, as in `8.64s`"),
        strict=True,
    )
}
RETRY = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}}
HEADERS: Mapping[int, Mapping[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "Bearer.", "schema": {"type": "string"}}},
    405: {"Allow": {"description": "The methods of the route.", "schema": {"type": "string"}}},
    415: {"Accept-Encoding": {"description": "`identity`.", "schema": {"type": "string"}}},
    429: {**RETRY, **RATES},
    503: RETRY,
}


def error_type(status: int, kind: str, name: str = "", **beside: Any) -> type[BaseModel]:
    """The body of an error with this status, with the codes that it may have; kind: its `type`; name: of the form."""
    _, codes = FAILURES[status]
    named: Any = Literal[tuple(code or None for code in codes)]
    fields: Any = {
        "message": (str, ...),
        "type": (Literal[kind], ...),
        "param": (Annotated[str, Field(max_length=MAX_PARAM)] | None, Field(description="The path of the field.")),
        "code": (named, Field(description=codes_told(status))),
    }
    detail = create_model(f"{name}Detail{status}", __base__=AnswerPart, **fields)
    return create_model(f"{name}Error{status}", __base__=AnswerPart, error=(detail, ...), **beside)


def codes_told(status: int) -> str:
    """Each code and what it says, as one text."""
    return "; ".join(f"`{code or 'null'}`: {told}" for code, told in FAILURES[status][1].items()) + "."


ERROR_TYPES: Mapping[int, type[BaseModel]] = {status: error_type(status, kind_of_error(status)) for status in FAILURES}
# Those below /v1/messages.
ANTHROPIC_ERRORS: Mapping[int, type[BaseModel]] = {
    status: error_type(
        status, anthropic_type(status), "Anthropic", type=(Literal["error"], ...), request_id=(str, ...)
    )
    for status in FAILURES
}  # fmt: skip
