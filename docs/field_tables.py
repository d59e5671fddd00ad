"""Tables of fields and error codes for docs/api.md, from the OpenAPI document."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from server.http.openapi.document import openapi_document

Schemas = Mapping[str, Mapping[str, Any]]
SIGNS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "exclusiveMaximum": "below {}"}
SIZES = {"Length": "characters", "Items": "entries", "Properties": "entries"}
# The document's numbers are floats: the largest whole number of 64 bits becomes the next one.
POWERS = {1 << 63: "2^63 - 1", -(1 << 63): "-2^63", (1 << 31) - 1: "2^31 - 1", 1 << 53: "2^53"}


def tables() -> dict[str, str]:
    """Each by the name of its marks in docs/api.md."""
    document = openapi_document("")
    schemas: Schemas = document["components"]["schemas"]
    sampling = [name for name in schemas["NativeParameters"]["properties"] if name != "draw_boxes"]
    return {
        "native fields": fields(schemas["NativeChat"]),
        "native parameters": fields(schemas["NativeParameters"], but=sampling),
        "completion fields": fields(schemas["ChatCompletionRequest"], but=sampling),
        "stream options": fields(schemas["StreamOptions"]),
        "text fields": fields(schemas["TextCompletionRequest"], but={*sampling} - {"max_tokens", "logprobs"}),
        "sampling fields": fields(schemas["NativeParameters"], but=("draw_boxes",)),
        "options of pictures": fields(schemas["PictureAddress"], but=("url",)),
        "options of videos": fields(schemas["VideoAddress"], but=("url",)),
        "error codes": codes(document),
    }


def fields(schema: Mapping[str, Any], but: Collection[str] = ()) -> str:
    """A row for each property, what is needed first; `but`: those that stand elsewhere."""
    rows = ["| field | default | takes | |", "|---|---|---|---|"]
    required = schema.get("required", ())
    for name, field in sorted(schema["properties"].items(), key=lambda one: one[0] not in required):
        if name not in but:
            default = "needed" if name in required else ""
            if field.get("default") not in (None, [], {}):
                default = f"`{json.dumps(field['default'])}`"
            told = field.get("description", "").replace("|", r"\|")
            rows.append(f"| `{name}` | {default} | {takes(field)} | {told} |")
    return "\n".join(rows)


def takes(schema: Mapping[str, Any]) -> str:
    """What a field may be, in words."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(takes(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "anything")
    inner = schema.get("items", schema.get("additionalProperties"))
    if kind == "array":
        kind = f"list of {takes(inner)}" if inner else "list"
    elif kind == "object" and isinstance(inner, dict):
        kind = f"object of {takes(inner)}"
    return " ".join([kind, *bounds(schema)])


def bounds(schema: Mapping[str, Any]) -> list[str]:
    """Of a number, a text or a list, in words."""
    found = [words.format(number(schema[name])) for name, words in SIGNS.items() if name in schema]
    for size, unit in SIZES.items():
        least, most = schema.get(f"min{size}"), schema.get(f"max{size}")
        if least is not None or most is not None:
            both = f"{least} to {most}" if least and most else f"at most {most}" if most else f"at least {least}"
            found.append(f"({most if least == most else both} {unit})")
    return found


def number(value: float) -> str:
    """As a reader has it."""
    return POWERS.get(int(value), f"{value:.15g}") if value == int(value) else f"{value:.15g}"


def codes(document: Mapping[str, Any]) -> str:
    """A row for each status, with its codes."""
    rows = ["| status | when | `code` |", "|---|---|---|"]
    for name, response in document["components"]["responses"].items():
        schema = document["components"]["schemas"][f"Detail{name.removeprefix('Error')}"]
        headers = "".join(f", with `{header}`" for header in response["headers"])
        told = schema["properties"]["code"]["description"]
        rows.append(f"| {name.removeprefix('Error')}{headers} | {response['description']} | {told} |")
    return "\n".join(rows)
