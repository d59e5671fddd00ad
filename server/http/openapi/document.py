"""The OpenAPI document of this server, which FastAPI makes of the routes' types."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from server.http.openapi import chats, looks, messages, responses, texts, transcriptions
from server.http.openapi.described import ref_of
from server.http.openapi.failures import ERROR_TYPES, FAILURES, HEADERS
from server.requests.sampling import SamplingRequest

# A module that describes routes stands here, and nowhere else.
ROUTES = (*chats.ROUTES, *responses.ROUTES, *messages.ROUTES, *transcriptions.ROUTES, *texts.ROUTES, *looks.ROUTES)

TOLD = """Open inference server for models that see, hear and read.

Bodies are JSON, declared as `application/json`, but for the form of `/v1/audio/transcriptions`. Every answer carries
`X-Request-Id`. Errors have one form, with Anthropic's beside it on its routes; `param` is the path of the field. `HEAD`
is taken wherever `GET` is; another method is a 405 `method_not_allowed`, another path a 404 `route_not_found`, or a 400
`route_not_supported` where OpenAI has it. In a stream an error is one event `data: {"error": {...}}`, after which no
`data: [DONE]` follows."""
UNTYPED = ("HTTPValidationError", "ValidationError")  # FastAPI's own, which no route here answers


def openapi_document(
    version: str, root_path: str | None = None, defaults: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """All of it, as JSON has it.

    root_path: what a proxy leaves in front of a path; defaults: of parameters of sampling, where a checkpoint is known.
    """
    router = APIRouter()
    for route in ROUTES:
        route.add_to(router)
    found = get_openapi(
        title="Pixelferry", version=version, summary="Chats with pictures, videos and sounds", description=TOLD,
        routes=router.routes, servers=None if root_path is None else [{"url": root_path}],
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
    )  # fmt: skip
    for operations in found["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    components = found["components"]
    for name in UNTYPED:
        components["schemas"].pop(name, None)
    for name, schema in pointed_to().items():
        components["schemas"].setdefault(name, schema)
    for schema in components["schemas"].values():
        fields = schema.get("properties", {})
        if fields.keys() >= SamplingRequest.model_fields.keys():
            for name, value in (defaults or {}).items():
                fields[name]["default"] = value
    components["responses"] = {
        f"Error{status}": {
            "description": told, "headers": dict(HEADERS.get(status, {})),
            "content": {"application/json": {"schema": {"$ref": ref_of(ERROR_TYPES[status])}}},
        }
        for status, (told, _) in FAILURES.items()
    }  # fmt: skip
    return found


def pointed_to() -> dict[str, Any]:
    """Schemas of what FastAPI does not see: events of streams, and errors that no route of the document answers."""
    kinds = [*ERROR_TYPES.values(), *(route.events for route in ROUTES if route.events is not None)]
    _, found = models_json_schema(
        [(kind, "serialization") for kind in kinds], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Any] = found["$defs"]
    return schemas
