"""What reading the bodies of all dialects has in common: JSON, a model's name, complaints that name a field."""

from collections.abc import Callable
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError

from server.http.errors import param_of
from server.requests.refusal import Refusal, invalid_request
from server.requests.sampling import SamplingRequest

M = TypeVar("M", bound=BaseModel)


def model_of(body: dict[str, Any]) -> str | None:
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise invalid_request("must be a string", "model")
    return model


def parsed(raw: bytes) -> Any:
    """The body's JSON. Raises Refusal."""
    try:
        return pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise invalid_request(f"the body is not valid JSON: {error}", code="invalid_json") from None


def object_or_inputs(body: Any) -> dict[str, Any]:
    """A JSON object; a bare list is the `inputs` of one. Raises Refusal."""
    if isinstance(body, list):
        return {"inputs": body}
    if not isinstance(body, dict):
        raise invalid_request("the body must be a JSON object or a list of inputs", code="invalid_json")
    return body


def validated(read: Callable[[], M], prefix: str = "") -> M:
    """What `read` gives. Its first complaint becomes a 400 that names the field and never repeats the value."""
    try:
        return read()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise _complaint(first["type"], first["msg"], first["loc"], prefix) from None


def _complaint(kind: str, message: str, loc: tuple[str | int, ...], prefix: str) -> Refusal:
    if kind == "value_error":  # one of our own validators
        message = message.removeprefix("Value error, ")
    param = param_of((prefix, *loc) if prefix else loc)
    if kind in SamplingRequest.model_fields:  # a complaint about two fields is filed under the one that it blames
        param = param_of((prefix, kind) if prefix else (kind,))
    if kind == "extra_forbidden":
        return invalid_request(f"{param}: there is no such parameter", param, "unknown_parameter")
    return invalid_request(f"{param}: {message}" if param else message, param or None)
