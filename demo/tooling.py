"""One tool, `count_shapes`, as people would declare it, and chats in which it is called where it fits.

The model's own chat template writes the declaration; what a call looks like is Hermes' form (docs/tools.md).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jinja2
import numpy as np

from demo import tasks
from demo.answers import COLOURS, SHAPES
from demo.checkpoint import TEMPLATE
from demo.pictures import Picture
from demo.tasks import Asked, Asker

NAME = "count_shapes"
_MARK = "<|im_start|>system\n"
_END = "<|im_end|>\n"
_ABOUT = (
    "Counts the shapes in the picture.",
    "Count shapes of one kind in an image",
    "how many shapes of a kind the picture shows",
    "Returns the number of shapes that match.",
    "Counts things in the last picture",
    "Counts shapes of the given shape and colour.",
    "Tell how many shapes there are.",
    "Exact counting of geometric shapes",
    "",
)
_ABOUT_HELD_OUT = ("Count the matching shapes in the given image.", "the number of such shapes in the picture")
_ASIDE = ("shape", "colour", "thing", "exists", "where", "shape_of", "colour_of", "json")
_LEFT_ALONE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The tool in one of its forms: `tool` as a request has it, `shape` and `colour` the names of its parameters."""

    tool: Mapping[str, Any]
    shape: str | None
    colour: str | None

    def arguments(self, shape: str | None, colour: str | None) -> dict[str, str] | None:
        """What counts these; None where the parameters cannot say it."""
        given: dict[str, str] = {}
        for name in self.tool["function"]["parameters"]["properties"]:
            value = shape if name == self.shape else colour
            if value is not None:
                given[name] = value
        if len(given) < (shape is not None) + (colour is not None):
            return None
        if not set(self.tool["function"]["parameters"].get("required", ())) <= set(given):
            return None
        return given


def said_call(arguments: Mapping[str, str]) -> str:
    """A call as the template writes it into a history."""
    return f'<tool_call>\n{{"name": "{NAME}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def declare(rng: np.random.Generator, *, held_out: bool = False) -> Declared:
    """A form of the tool: other descriptions, parameters in either order, with their values or without."""
    about = _ABOUT_HELD_OUT if held_out else _ABOUT
    colour = "color" if rng.random() < 0.35 else "colour"
    names = [["shape", colour], [colour, "shape"], ["shape"]][int(rng.choice(3, p=(0.5, 0.15, 0.35)))]
    listed, told = rng.random() < 0.6, rng.random() < 0.3
    properties: dict[str, Any] = {}
    for name in names:
        properties[name] = {"type": "string"}
        if listed:
            properties[name]["enum"] = list(SHAPES if name == "shape" else COLOURS)
        if told:
            properties[name]["description"] = f"the {name} to count" if rng.random() < 0.5 else f"which {name}"
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if names == ["shape"] and rng.random() < 0.7 or rng.random() < 0.15:
        parameters["required"] = ["shape"]
    if rng.random() < 0.3:
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": NAME}
    if text := about[int(rng.integers(len(about)))]:
        function["description"] = text
    function["parameters"] = parameters
    return Declared(
        tool={"type": "function", "function": function}, shape="shape", colour=colour if colour in names else None
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE)


def system_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """What the template says of these tools to the model, without the marks around it."""
    text = _template().render(messages=[{"role": "user", "content": ""}], tools=list(tools))
    return text[len(_MARK) : text.index(_END)]


def asked_with(asker: Asker, declared: Declared, picture: Picture) -> tuple[Asked, ...]:
    """A question beside the offer: one for the tool, with its call and then what is said to its result; or another."""
    rng = asker.rng
    if rng.random() >= _LEFT_ALONE:
        for _ in range(8):
            asked = tasks.about_picture(asker, picture, ("count_of",))
            arguments = declared.arguments(*asked.kind)
            if arguments is not None:
                result = asked.answer
                back = f"<tool_response>\n{result}\n</tool_response>"
                first = replace(asked, task="tool_call", answer=said_call(arguments), call=arguments, things=())
                then = Asked(task="tool_result", language=asker.language, question=back, answer=result)
                return (first, then)
    if rng.random() < 0.25:
        return (tasks.unknown(asker) if rng.random() < 0.4 else tasks.small_talk(asker),)
    return (tasks.about_picture(asker, picture, _ASIDE),)
