"""Routes that gateways, monitors and people look at, as the document tells them: probes, metrics, models, pages."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from server.http.openapi.answers import AnswerPart, Missing, ServedModel, ServedModels
from server.http.openapi.described import LOOK, DescribedRoute
from server.http.openapi.failures import ERROR_TYPES, UNANSWERED
from server.metrics import KEPT, SLOWEST


class Alive(AnswerPart):
    status: Literal["live"]


class Readiness(AnswerPart):
    status: Literal["ready", "busy"] = Field(description="Busy is ready: a full queue answers 429 itself.")
    engine: Literal["up", "down"]
    workers_up: int
    workers: int
    requests: int = Field(description="That are accepted and unfinished.")
    waiting: int = Field(description="Requests that wait for a worker or for the engine.")
    shm: Literal["ok", "crowded", "gone"] = Field(
        description="Shared memory. Crowded: the last medium found no room, because files of others fill it."
    )


class HowFar(AnswerPart):
    """What stands beside the error while a server is not ready: its children, or how far a download is."""

    status: str = Field(description="The error's code.")
    engine: Literal["up", "down"] | Missing = None
    workers_up: int | Missing = None
    workers: int | Missing = None
    requests: int | Missing = None
    waiting: int | Missing = None
    shm: Literal["ok", "crowded", "gone"] | Missing = None
    bytes_done: int | Missing = None
    bytes_total: int | Missing = None


class ErrorSeen(AnswerPart):
    time: Annotated[datetime, Field(description="When the latest of them ended, UTC.")]
    route: str = Field(
        description="Its template, or a route of OpenAI's; `unmatched`: no route has the path; `malformed`: no HTTP."
    )
    status: int = Field(description="Of the answer: of a stream that broke off, 200; 499: none began.")
    code: str = Field(description="The error's code, or its kind where it has none.")
    id: str = Field(description="Ours, of the latest, by which the log can be searched.")
    count: int = Field(description="How many requests ended with it.")
    replica: str | Missing = Field(None, description="Whose it was, behind an ingress over several servers.")


class SlowRequestSeen(AnswerPart):
    time: Annotated[datetime, Field(description="When the request ended, UTC.")]
    route: str = Field(description="Its template.")
    status: int = Field(description="Of the answer; 499: none began.")
    id: str = Field(description="Ours, by which the log can be searched.")
    seconds: float = Field(description="From its first byte to its answer's last.")
    stages: dict[str, float] = Field(description="Seconds, by the names of `timings`.")
    prompt_tokens: int
    cached_tokens: int
    media_tokens: int
    generation_tokens: int
    replica: str | Missing = Field(None, description="Whose it was, behind an ingress over several servers.")


class ErrorsSeen(AnswerPart):
    errors: list[ErrorSeen] = Field(max_length=KEPT, description="One for each route, status and code; newest first.")
    slowest: list[SlowRequestSeen] = Field(max_length=SLOWEST, description="Of the last five minutes, slowest first.")


class ServerVersion(AnswerPart):
    version: str


class ServerLoad(AnswerPart):
    server_load: int = Field(description="Requests that are accepted and unfinished.")


_detail: Any = ERROR_TYPES[503].model_fields["error"].annotation
NOT_READY = create_model("NotReady", __base__=HowFar, error=(_detail, ...))
_unanswered = "; ".join(f"`{code}`: {told}" for code, told in UNANSWERED.items())
ROUTES = (
    *(
        DescribedRoute(path=path, tag="probes", summary="Whether the server's process answers", answer=Alive)
        for path in ("/health", "/healthz", "/health/live")
    ),
    *(
        DescribedRoute(
            path=path, methods=methods, tag="probes", summary="Whether a request would be answered, and why not",
            answer=Readiness, errors={503: NOT_READY},
        )
        for path, methods in (("/health/ready", LOOK), ("/ping", (*LOOK, "POST")))
    ),
    DescribedRoute(
        path="/metrics", tag="probes", summary="Metrics, as Prometheus reads them", media_type="text/plain",
        told="`mm_rejected` and `request_success` count errors by their codes. Some are never an answer's: "
        f"{_unanswered}.",
    ),
    DescribedRoute(
        path="/status/errors", tag="probes", summary="The last errors of requests, and the slowest", answer=ErrorsSeen,
        told="They hold nothing that a client wrote. Errors of probes are not among them.",
    ),
    DescribedRoute(path="/version", tag="probes", summary="The version of Pixelferry", answer=ServerVersion),
    DescribedRoute(path="/load", tag="probes", summary="How many requests are here", answer=ServerLoad),
    DescribedRoute(path="/v1/models", tag="models", summary="The model that is served", answer=ServedModels),
    DescribedRoute(
        path="/v1/models/{name}", tag="models", summary="The model by its name", answer=ServedModel, may_miss=True,
        path_told={"name": "The served name; it may hold slashes."},
    ),
    DescribedRoute(path="/openapi.json", tag="pages", summary="This document", answer=dict[str, Any]),
    DescribedRoute(
        path="/docs", tag="pages", summary="This document as a page", media_type="text/html",
        told="It is open and empty where the server has keys: it asks for one, and reads the document with it.",
    ),
)  # fmt: skip
