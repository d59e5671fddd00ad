"""What a field of a body may not be: the sentence of the 400 that names it, in our words for each rule of pydantic."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from server.http.errors import param_of
from server.requests.refusal import Refusal, invalid_request
from server.requests.sampling import SamplingRequest

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
