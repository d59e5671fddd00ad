"""Why a request is not answered: the client must change it, must come back later, or the fault is ours."""

from collections.abc import Sequence
from typing import Literal

from tokenization.chat.errors import shortened

RefusalKind = Literal[
    "invalid_request", "unauthorized", "forbidden", "not_found", "timed_out", "body_too_large", "encoded_body",
    "head_too_large", "overloaded", "unavailable", "internal",
]  # fmt: skip


class Refusal(Exception):
    """A request that ends without an answer. Its message goes to the client: no paths, segment names or addresses."""

    def __init__(
        self, kind: RefusalKind, message: str, *, param: str | None = None, code: str | None = None,
        retry_after: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param  # the path of the offending field
        self.code = code  # what a program tells the refusal by
        self.retry_after = retry_after  # seconds; None: do not come back with the same request


def listed(names: Sequence[object], most: int = 8) -> str:
    """A client's own words or numbers for an error message: the first `most` of them, each short and printable."""
    shown = ", ".join(repr(shortened(name)) if isinstance(name, str) else str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    """The client's chat or parameters; `param` is the path of the offending field."""
    return Refusal("invalid_request", message, param=param, code=code)


def took_too_long(seconds: float, param: str) -> Refusal:
    """A worker was killed over it. The client's to change: asked again, the same would take as long."""
    message = f"preparing this request took more than the {seconds:.0f} s that what it holds may take"
    return invalid_request(message, param, "took_too_long")


def unauthorized(message: str) -> Refusal:
    """No key of this server came with the request."""
    return Refusal("unauthorized", message, code="invalid_api_key")


def forbidden(message: str, code: str) -> Refusal:
    """Whoever asks, and with whatever key, is not answered in this way."""
    return Refusal("forbidden", message, code=code)


def not_found(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    return Refusal("not_found", message, param=param, code=code)


def body_too_large(limit: int) -> Refusal:
    """The body has more than `limit` bytes."""
    message = f"the request body is larger than this server's limit of {limit} bytes"
    return Refusal("body_too_large", message, code="body_too_large")


def encoded_body(coding: str) -> Refusal:
    """The body is compressed, or coded in another way."""
    message = f"Content-Encoding: a body is taken as it is, not in {shortened(coding)!r}"
    return Refusal("encoded_body", message, param="Content-Encoding", code="unsupported_encoding")


def head_too_large(limit: int) -> Refusal:
    """The request line and headers have more than `limit` bytes."""
    message = f"the head of the request is larger than this server's limit of {limit} bytes"
    return Refusal("head_too_large", message, code="head_too_large")


def head_too_long(limit: int) -> Refusal:
    """The head has more than `limit` fields."""
    message = f"the head of the request has more fields than this server's limit of {limit}"
    return Refusal("head_too_large", message, code="head_too_large")


def field_too_long(name: str, limit: int) -> Refusal:
    """A field of the head that is read has more than `limit` bytes."""
    message = f"the field {name} of the request's head has more bytes than this server's limit of {limit}"
    return Refusal("head_too_large", message, code="head_too_large")


def timed_out(message: str, code: str) -> Refusal:
    """The client sent its request too slowly."""
    return Refusal("timed_out", message, code=code)


def overloaded(message: str, code: str, retry_after: float = 1.0) -> Refusal:
    """The queue or a memory budget is full; the same request may succeed later."""
    return Refusal("overloaded", message, code=code, retry_after=retry_after)


def gave_way() -> Refusal:
    """Its client has more than its share of something, which others asked for."""
    return overloaded("others asked for their share of this server, and this client had more than its own", "gave_way")


def unavailable(message: str, code: str, retry_after: float = 1.0) -> Refusal:
    """A process that the request needs is not there."""
    return Refusal("unavailable", message, code=code, retry_after=retry_after)


def loading() -> Refusal:
    return unavailable("the model is still loading", "loading", retry_after=2)


def internal(message: str, code: str = "internal") -> Refusal:
    return Refusal("internal", message, code=code)
