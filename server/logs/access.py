"""One line and one count for each HTTP answer. Neither holds a byte of a body, a query or a header but the client's id.

The id of ours stands in the answer; it leads to the line.
"""

import logging
import re
import time
from dataclasses import dataclass, field
from typing import Any

from starlette.routing import Match
from starlette.types import Scope

from server.logs.setup import ACCESS
from server.metrics import Metrics
from server.stopwatch import Tally

log = logging.getLogger(ACCESS)

CLIENT_LEFT = 499  # as nginx writes it; nobody receives it
UNKNOWN = "unknown"  # the route of a path that none has
# Asked every few seconds by those who watch a server.
QUIET = frozenset({"/health", "/health/live", "/health/ready", "/ping", "/metrics", "/version", "/load"})
CLIENTS = frozenset(
    {"unread", "unread_full", "head_too_large", "body_timeout", "malformed"}
)  # cut off for what the client did
EXPECTED = frozenset({"loading", "stopping"})  # a probe's errors of every start and every end
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}")
PLAIN_SEGMENT = re.compile(r"[A-Za-z0-9_.-]{0,32}")
MAX_SEGMENTS = 6


@dataclass(slots=True)
class Exchange:
    """What is known of one HTTP request. Lies in the scope's state as `exchange`."""

    request_id: str  # ours
    client_request_id: str | None
    tally: Tally = field(default_factory=Tally)
    status: int = CLIENT_LEFT  # until an answer begins
    error: str | None = None  # the code of what it ended with, also of a stream whose status was 200
    whole: bool = False  # the last byte was handed over
    trace_id: str | None = None

    @property
    def level(self) -> int:
        unanswered = self.status < 400 or self.status == CLIENT_LEFT
        if self.status >= 500 or (self.error is not None and unanswered and self.error not in CLIENTS):
            return logging.ERROR
        return logging.INFO if unanswered and self.error is None else logging.WARNING

    @property
    def left(self) -> bool:
        """The client went before it had its whole answer."""
        return self.error is None and (not self.whole or self.status == CLIENT_LEFT)


def tell_error(scope: Scope, code: str) -> None:
    """This request ends with an error of that code; nothing where nobody keeps an account of it."""
    exchange = scope.get("state", {}).get("exchange")
    if exchange is not None:
        exchange.error = code


def finish(scope: Scope, exchange: Exchange, metrics: Metrics) -> None:
    """Count and log an answer that is over, however it ended."""
    seconds = time.monotonic() - exchange.tally.received
    route = route_of(scope)
    method = method_of(scope)
    metrics.answered(method, route, exchange.status, seconds)
    if exchange.error is not None and route not in QUIET:
        metrics.reject(exchange.error)
    level = exchange.level
    told = route not in QUIET or (level > logging.INFO and exchange.error not in EXPECTED)
    if told and log.isEnabledFor(level):
        path = plain_path(scope["path"]) if route == UNKNOWN else route
        fields = fields_of(scope, exchange, seconds)
        log.log(level, "%s %s %d", method, path, exchange.status, extra={"fields": fields})


def fields_of(scope: Scope, exchange: Exchange, seconds: float) -> dict[str, Any]:
    """Ids, client, times in seconds, tokens and error, each where there is one."""
    tally = exchange.tally
    fields = {
        "request_id": exchange.request_id,
        "x_request_id": exchange.client_request_id,
        "trace_id": exchange.trace_id,
        "client": address_of(scope.get("client")),
        "seconds": round(seconds, 4),
        "first_token_seconds": None if tally.first_token is None else round(tally.first_token - tally.received, 4),
        "prompt_tokens": tally.prompt_tokens or None,
        "generation_tokens": tally.generation_tokens if tally.prompt_tokens else None,
        "error": exchange.error,
        "ended": "client_left" if exchange.left else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def method_of(scope: Scope) -> str:
    """One of a few: a client may make up any."""
    method: str = scope["method"]
    return method if method in METHODS else "other"


def route_of(scope: Scope) -> str:
    """The template of the route that answers, or would have answered what was turned away before it."""
    route = scope.get("route")
    if route is None and "app" in scope:
        route = next((one for one in scope["app"].routes if one.matches(scope)[0] is not Match.NONE), None)
    path: str = getattr(route, "path_format", UNKNOWN)
    return path


def address_of(client: tuple[str, int] | None) -> str:
    """A peer as host:port. A proxy's header may have named it, so it is looked at before it is written."""
    if client is None or not ADDRESS.fullmatch(client[0]):
        return UNKNOWN
    host = f"[{client[0]}]" if ":" in client[0] else client[0]
    return f"{host}:{client[1]}" if client[1] else host


def plain_path(path: str) -> str:
    """A path that no route has, as far as it looks like one: anything may stand in it."""
    segments = path.split("/")
    shown = [part if PLAIN_SEGMENT.fullmatch(part) else "..." for part in segments[: MAX_SEGMENTS + 1]]
    return "/".join(shown) + ("/..." if len(segments) > MAX_SEGMENTS + 1 else "")
