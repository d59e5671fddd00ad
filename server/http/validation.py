"""Checks what a body says of its parameters, and words the 400 that names the field."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from server.requests.refusal import invalid_request
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
    "string_too_short": "must not be empty",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "literal_error": "must be {expected}",
    "string_too_long": "has more than {max_length} characters",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "too_short": "has {actual_length} entries; it must have {min_length} or more",
    "too_long": "has {actual_length} entries; at most {max_length} are taken",
}


class BodyFields(BaseModel):
    """What a body says beside SamplingRequest, each field checked for its type. Others are ignored here."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = Field(None, description="The one that is served, if it is given.")
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="What is kept of the request's media and prompt is shared with the same salt alone."
    )


def validated(model: type[M], body: Any, prefix: str = "", renamed: Mapping[str, str] = {}) -> M:
    """What the body says of a model's fields. The first complaint is a 400 that names the field, never its value.

    renamed: what the body itself calls some of them.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    kind, loc = first["type"], (prefix, *first["loc"]) if prefix else first["loc"]
    if kind in SamplingRequest.model_fields:  # a complaint about two fields is filed under the one that it blames
        loc = (prefix, kind) if prefix else (kind,)
    if loc and loc[0] in renamed:
        loc = (renamed[str(loc[0])], *loc[1:])
    param, message = param_of(loc), _told(first)
    raise invalid_request(f"{param}: {message}" if param else message, param or None)


def _told(error: ErrorDetails) -> str:
    """In our words, whichever of our own validators or of pydantic's rules it was that found it."""
    kind, message = error["type"], error["msg"]
    if kind == "value_error" or kind in SamplingRequest.model_fields:
        return message.removeprefix("Value error, ")
    bounds = {
        name: f"{value:.15g}" if isinstance(value, float) else value for name, value in error.get("ctx", {}).items()
    }
    return WORDS.get(kind, "has a value that is not taken").format(**bounds)


def param_of(loc: tuple[str | int, ...]) -> str:
    """A validator's location as the path of a field: ("messages", 1, "role") -> "messages[1].role".

    A client's own key may be part of it, and is shortened.
    """
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{shortened(part)}" for part in loc)
    return path.removeprefix(".")
