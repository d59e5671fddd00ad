"""What reading the bodies of all dialects has in common: JSON, a model's name, complaints that name a field."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from server.http.errors import param_of
from server.http.long_texts import Raw, from_json
from server.requests.refusal import Refusal, invalid_request
from server.requests.sampling import SamplingRequest
from tokenization.chat.errors import shortened

M = TypeVar("M", bound=BaseModel)

# What pydantic finds wrong, by its error's type, in our words; the names in braces are the error's own.
WORDS: Mapping[str, str] = {
    "missing": "is missing",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "too_short": "has {actual_length} entries; it must have {min_length} or more",
    "too_long": "has {actual_length} entries; at most {max_length} are taken",
}


def model_of(body: dict[str, Any]) -> str | None:
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise invalid_request("must be a string", "model")
    return model


def require_json(content_type: str | None) -> None:
    """Raise Refusal for a body that is not declared as JSON.

    A web page may send any other type to any address without asking it first, so a browser's visitor could be made to
    ask a server on its own machine.
    """
    kind = (content_type or "").partition(";")[0].strip()
    if kind.lower() != "application/json":
        said = f"it is {shortened(kind)!r}" if kind else "it is missing"
        raise invalid_request(f"the Content-Type must be application/json, {said}", code="unsupported_media_type")


def parsed(raw: Raw) -> Any:
    """The body's JSON. Raises Refusal."""
    try:
        return from_json(raw)
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
        first = error.errors(include_url=False, include_input=False)[0]
        raise _complaint(first["type"], _told(first), first["loc"], prefix) from None


def _told(error: ErrorDetails) -> str:
    """In our words, whichever of our own validators or of pydantic's rules it was that found it."""
    kind, message = error["type"], error["msg"]
    if kind == "value_error" or kind in SamplingRequest.model_fields:
        return message.removeprefix("Value error, ")
    bounds = {
        name: f"{value:.15g}" if isinstance(value, float) else value for name, value in error.get("ctx", {}).items()
    }
    return WORDS.get(kind, "has a value that is not taken").format(**bounds)


def _complaint(kind: str, message: str, loc: tuple[str | int, ...], prefix: str) -> Refusal:
    param = param_of((prefix, *loc) if prefix else loc)
    if kind in SamplingRequest.model_fields:  # a complaint about two fields is filed under the one that it blames
        param = param_of((prefix, kind) if prefix else (kind,))
    return invalid_request(f"{param}: {message}" if param else message, param or None)
