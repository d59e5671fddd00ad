"""One route as the document tells it: the types of its body and answers, its examples, what it may answer instead."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path
from fastapi.openapi.models import Example
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from server.http.middleware.keys import OPEN_PATHS
from server.http.openapi.failures import ERROR_TYPES, FAILURES, HEADERS, RATES

LOOK = ("GET", "HEAD")
# How a key is given, where the server has any.
SECURITY = (
    HTTPBearer(
        scheme_name="bearer", auto_error=False, description="An API key of the server; asked for where it has any."
    ),
    APIKeyHeader(name="x-api-key", scheme_name="api_key", auto_error=False, description="The same, as Anthropic's do."),
)
OWN_ID = "A name of the client's own for the request: 1 to 64 letters, digits, `.`, `_` or `-`; it comes back."
RequestIdHeader = Annotated[str | None, Header(alias="X-Request-Id", description=OWN_ID)]
TIMED = "`1`: the usage of the answer has the seconds of the request's stages."
TimingsHeader = Annotated[str | None, Header(alias="X-Pixelferry-Timings", description=TIMED)]
ID = {"X-Request-Id": {"description": "Of the request: the client's own, else ours.", "schema": {"type": "string"}}}
WITH_KEY = (400, 401, 403, 408, 413, 415, 429, 431, 500, 503)
OF_PROBES = (400, 431, 500, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedRoute:
    """`answer`: the type of a 200, None where it is no JSON; `body`: what parses, or what says the same by hand."""

    path: str
    methods: tuple[str, ...] = LOOK
    tag: str
    summary: str
    told: str = ""
    answer: Any = None
    media_type: str = "application/json"  # another one is a text, which stands there beside an `answer`
    events: type[BaseModel] | None = None  # the type of each event of a stream
    done: bool = True  # a stream ends with [DONE]
    errors_in_stream: bool = True  # an error there is an event with the body of an answer; else `events` has it
    body: Any = None
    takes: str = "application/json"  # the type of the body
    body_told: str = ""
    examples: Mapping[str, Any] = field(default_factory=dict)  # bodies, by what they show; each is answered with 200
    path_told: Mapping[str, str] = field(default_factory=dict)  # what stands in the path
    timed: bool = False  # it takes X-Pixelferry-Timings
    may_miss: bool = False  # 404: it is asked for a model by name
    errors: Mapping[int, type[BaseModel]] = field(default_factory=dict)  # bodies of errors with more than an error

    @property
    def is_open(self) -> bool:
        """No key is asked for."""
        return self.path in OPEN_PATHS

    def add_to(self, router: APIRouter) -> None:
        """An operation for each method; what stands behind it is never called."""
        for method in self.methods:
            router.add_api_route(
                self.path, self._endpoint(), methods=[method], tags=[self.tag], summary=self.summary,
                description=self.told, operation_id=self._name_of(method), responses=self._responses(method),
                dependencies=[] if self.is_open else [Depends(scheme) for scheme in SECURITY],
                response_class=Response if method == "HEAD" or self.answer is None else JSONResponse,
            )  # fmt: skip

    def _name_of(self, method: str) -> str:
        words = self.path.replace("/", " ").translate(str.maketrans(".{}:", "    ")).split()
        return "_".join([method.lower(), *words])

    def _endpoint(self) -> Callable[..., None]:
        def takes_nothing() -> None: ...

        kinds: dict[str, Any] = {name: Annotated[str, Path(description=told)] for name, told in self.path_told.items()}
        if self.body is not None:
            shown = {name: Example(summary=name, value=value) for name, value in self.examples.items()}
            kinds["body"] = Annotated[
                self.body, Body(description=self.body_told or None, openapi_examples=shown, media_type=self.takes)
            ]
        kinds["request_id"] = RequestIdHeader
        if self.timed:
            kinds["timings"] = TimingsHeader
        # By `Parameter`: a function that is written could not have parameters of a table.
        takes_nothing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, annotation=kind,
                    default=None if kind in (RequestIdHeader, TimingsHeader) else inspect.Parameter.empty,
                )
                for name, kind in kinds.items()
            ]
        )  # fmt: skip
        return takes_nothing

    def _responses(self, method: str) -> dict[int | str, dict[str, Any]]:
        content: dict[str, Any] = {}
        if self.answer is None or self.media_type != "application/json":
            content[self.media_type] = {"schema": {"type": "string"}}
        if self.events is not None:
            content["text/event-stream"] = {"schema": self._event_schema(self.events)}
        good: dict[str, Any] = {"description": self.summary, "headers": {**ID, **({} if self.body is None else RATES)}}
        found: dict[int | str, dict[str, Any]] = {200: good}
        if method != "HEAD":
            good |= {"content": content} if content else {}
            good |= {} if self.answer is None else {"model": self.answer}
        for status in sorted((*(OF_PROBES if self.is_open else WITH_KEY), *((404,) if self.may_miss else ()))):
            failed: dict[str, Any] = {"description": FAILURES[status][0], "headers": {**ID, **HEADERS.get(status, {})}}
            found[status] = failed
            if method != "HEAD":
                failed["model"] = self.errors.get(status, ERROR_TYPES[status])
        return found

    def _event_schema(self, kind: type[BaseModel]) -> dict[str, Any]:
        """That of each event of a stream: its data are JSON, or the mark of the end."""
        statuses = (400, 429, 500, 503) if self.errors_in_stream else ()
        kinds = (kind, *(self.errors.get(status, ERROR_TYPES[status]) for status in statuses))
        told = {
            "contentMediaType": "application/json",
            "contentSchema": {"anyOf": [{"$ref": ref_of(one)} for one in kinds]},
        }
        data = {"anyOf": [*([{"const": "[DONE]"}] if self.done else []), {"type": "string", **told}]}
        return {"type": "object", "required": ["data"], "properties": {"data": data}}


def ref_of(kind: type[BaseModel]) -> str:
    """Where FastAPI puts its schema."""
    return f"#/components/schemas/{kind.__name__}"
