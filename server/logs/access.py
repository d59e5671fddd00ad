"""One line and one count for each HTTP answer. Neither holds a byte of a body, a query or a header but the client's id.

The id of ours stands in the answer; it leads to the line.
"""

import logging
import re
import time
from typing import Any

from starlette.routing import Match
from starlette.types import Scope

from server.logs.line_bound import LineBound
from server.logs.setup import ACCESS
from server.metrics import Metrics
from server.request_context import CLIENT_LEFT, RequestContext

log = logging.getLogger(ACCESS)

UNKNOWN = "unknown"  # the route of a path that none has
UNMATCHED = "unmatched"  # the same among the last errors
# Asked every few seconds by those who watch a server.
QUIET = frozenset(
    {
        "/health", "/healthz", "/health/live", "/health/ready", "/ping", "/metrics", "/status/errors", "/version",
        "/load",
    }
)  # fmt: skip
CLIENTS = frozenset(
    {"unread", "unread_full", "head_too_large", "body_timeout", "malformed"}
)  # cut off for what the client did
EXPECTED = frozenset({"downloading", "loading", "stopping"})  # a probe's errors of every start and every end
ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}")
PLAIN_SEGMENT = re.compile(r"[A-Za-z0-9_.-]{0,32}")
MAX_SEGMENTS = 6
# Keys of a line, by the names that ModelTimings.stages has; one with a dot is a part of the one before.
STAGES = {
    "prepare": "prepare_seconds",
    "prepare.worker_queue": "worker_queue_seconds",
    "queue": "queue_seconds",
    "prefill": "prefill_seconds",
    "prefill.encode": "encode_seconds",
    "decode": "decode_seconds",
}


def level_of(context: RequestContext) -> int:
    """Of the line of a request that is over: an error where the server is at fault."""
    no_error_status = context.status < 400 or context.status == CLIENT_LEFT
    if context.status >= 500 or (context.error is not None and no_error_status and context.error not in CLIENTS):
        return logging.ERROR
    return logging.INFO if no_error_status and context.error is None else logging.WARNING


def log_answer(scope: Scope, context: RequestContext, metrics: Metrics, unauthorized: LineBound) -> None:
    """Count and log an answer that is over, however it ended. unauthorized: bounds the lines of such requests."""
    seconds = time.monotonic() - context.received
    route = route_of(scope)
    metrics.answered(context.method, route, context.status, seconds)
    if route not in QUIET:
        if context.error is not None:
            metrics.reject(context.error)
            metrics.ended(context.error)
            metrics.errors.add(
                route=shown_route(scope, context, route),
                status=context.status,
                code=context.error,
                request_id=context.id,
                authorized=context.authorized,
            )
        else:
            for prompt in context.timings:
                metrics.ended(prompt.reason or "abort")
        if context.timings:
            metrics.slow.add(seconds, route, context, context.timings[-1])
    level = level_of(context)
    told = route not in QUIET or (level > logging.INFO and context.error not in EXPECTED)
    if told and log.isEnabledFor(level):
        others = "" if context.authorized else unauthorized.take()
        if others is None:
            return
        path = plain_path(scope["path"]) if route == UNKNOWN else route
        fields = fields_of(scope, context, seconds)
        log.log(level, "%s %s %d%s", context.method, path, context.status, others, extra={"fields": fields})


def fields_of(scope: Scope, context: RequestContext, seconds: float) -> dict[str, Any]:
    """Ids, client, seconds, tokens and error, each where there is one. Stages are those of the last of its prompts."""
    first_token = context.first_token
    stages = context.timings[-1].stages if context.timings else {}
    fields = {
        "request_id": context.id,
        "x_request_id": context.client_request_id,
        "trace_id": context.trace_id,
        "client": address_of(scope.get("client")),
        "seconds": round(seconds, 4),
        "first_token_seconds": None if first_token is None else round(first_token - context.received, 4),
        "prompt_tokens": context.prompt_tokens or None,
        "generation_tokens": context.generation_tokens if context.prompt_tokens else None,
        "cached_tokens": context.cached_tokens if context.prompt_tokens else None,
        "media_tokens": context.media_tokens or None,
        **{key: round(stages[name], 4) for name, key in STAGES.items() if name in stages},
        "error": context.error,
        "ended": "client_left" if context.left else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def route_of(scope: Scope) -> str:
    """The template of the route that answers, or would have answered what was turned away before it."""
    route = scope.get("route")
    if route is None and "app" in scope:
        route = next((one for one in scope["app"].routes if one.matches(scope)[0] is not Match.NONE), None)
    path: str = getattr(route, "path_format", UNKNOWN)
    return path


def shown_route(scope: Scope, context: RequestContext, route: str) -> str:
    """The route among the last errors. Of one that OpenAI has and this server has not, what errors.py knows of it."""
    if context.error == "route_not_supported":
        path: str = scope["path"]
        return "/".join(path.split("/")[:3])
    return UNMATCHED if route == UNKNOWN else route


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
