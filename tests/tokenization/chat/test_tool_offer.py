"""Tools and how they may be called, as bodies say it: each wrong shape is an error that names its field."""

import json
from typing import Any

import pytest

from tests.tables import each_of
from tokenization.chat.dialects import chat_from_openai, with_tools
from tokenization.chat.errors import ChatError
from tokenization.chat.tool_offer import MAX_CHARACTERS, MOST_TOOLS, ToolOffer

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT = chat_from_openai([{"role": "user", "content": "x"}])


def tool(name: Any = "weather", parameters: Any = CITY, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: Any, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def offer_of(*tools: Any, **body: Any) -> ToolOffer:
    chat, offer = with_tools(CHAT, {"tools": list(tools), **body})
    assert json.loads(chat.tools) == list(tools) and offer is not None
    return offer


def refused(body: dict[str, Any]) -> ChatError:
    with pytest.raises(ChatError) as caught:
        with_tools(CHAT, body)
    caught.value.message.encode("utf-8")
    return caught.value


def test_what_may_be_called() -> None:
    both = (tool(), tool("look", None, description="sees", strict=True))
    for choice in (None, "auto", "required"):
        offer = offer_of(*both, tool_choice=choice)
        assert offer.choice == (choice or "auto") and not offer.single
        assert [(one.name, one.param) for one in offer.tools] == [
            ("weather", "tools[0].function.parameters"), ("look", "tools[1].function.parameters"),
        ]  # fmt: skip
    one = offer_of(*both, tool_choice=named("look"))
    assert one.choice == "named" and one.single and [found.name for found in one.tools] == ["look"]
    some = offer_of(*both, tool_choice=allowed("required", named("weather")), parallel_tool_calls=False)
    assert some.choice == "required" and some.single and [found.name for found in some.tools] == ["weather"]


def test_what_nothing_here_can_call_is_left_out_beside_a_function() -> None:
    """OpenAI's other tool of a chat is `custom`; the place of each function in the list stays its name in errors."""
    custom = {"type": "custom", "custom": {"name": "patch", "format": {"type": "text"}}}
    for choice in ("auto", "none", "required", named("weather")):
        chat, offer = with_tools(CHAT, {"tools": [custom, tool(), {"type": "web_search"}], "tool_choice": choice})
        assert json.loads(chat.tools) == [tool()] and chat.left_out == ("custom patch", "web_search")
        assert offer is None or [one.param for one in offer.tools] == ["tools[1].function.parameters"]
        assert (offer is None) == (choice == "none")
    assert with_tools(CHAT, {"tools": [tool()]})[0].left_out == ()


def test_a_choice_of_none_shows_the_tools_and_calls_none() -> None:
    chat, offer = with_tools(CHAT, {"tools": [tool()], "tool_choice": "none"})
    assert json.loads(chat.tools) == [tool()] and offer is None


@each_of(
    "body",
    [{}, {"tools": None}, {"tools": []}, {"tool_choice": "none"}, {"tools": [], "tool_choice": "auto"},
     {"parallel_tool_calls": False}, {"parallel_tool_calls": None}],
)  # fmt: skip
def test_no_tools_are_none(body: dict[str, Any]) -> None:
    assert with_tools(CHAT, body) == (CHAT, None)


def test_arguments_are_an_object_of_what_is_declared() -> None:
    """Unless the schema says otherwise, in whatever way."""
    (one,) = offer_of(tool()).tools
    assert json.loads(one.schema) == {**CITY, "additionalProperties": False}
    others: list[dict[str, Any]] = [
        {"additionalProperties": True}, {"patternProperties": {"a": {}}}, {"allOf": [{}]}, {"$ref": "#/x"},
    ]  # fmt: skip
    for more in others:
        (one,) = offer_of(tool(parameters={**CITY, **more})).tools
        assert json.loads(one.schema) == {**CITY, **more}
    (one,) = offer_of(tool(parameters=None)).tools
    assert json.loads(one.schema) == {"type": "object", "properties": {}, "additionalProperties": False}


@each_of(
    ("body", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": "x"}, "tools"),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [tool()] * (MOST_TOOLS + 1)}, "tools"),
        ({"tools": [tool(description="x" * MAX_CHARACTERS)]}, "tools"),
        ({"tools": [tool(description='"' * (MAX_CHARACTERS - 1000))]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [tool(), {"type": 3}]}, "tools[1].type"), ({"tools": [tool(), {}]}, "tools[1].type"),
        ({"tools": [tool(), {"type": "custom"}, tool()]}, "tools[2].function.name"),
        ({"tools": [tool(), {"type": "custom", "custom": {"name": "x"}}],
          "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
        ({"tools": [{"function": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [tool(None)]}, "tools[0].function.name"),
        ({"tools": [tool("")]}, "tools[0].function.name"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool('a"')]}, "tools[0].function.name"),
        ({"tools": [tool("a" * 65)]}, "tools[0].function.name"),
        ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name"),
        ({"tools": [tool(description=3)]}, "tools[0].function.description"),
        ({"tools": [tool(description="\ud800")]}, "tools[0]"),
        ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters="{}")]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
        ({"tools": [tool(parameters={"maximum": 1 << 70})]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named("weather")}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": 3}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": named("other")}, "tool_choice.function.name"),
        ({"tools": [tool()], "tool_choice": named(3)}, "tool_choice.function.name"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [tool()], "tool_choice": allowed("must", named("weather"))}, "tool_choice.allowed_tools.mode"),
        ({"tools": [tool()], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [tool()], "tool_choice": allowed("auto", {})}, "tool_choice.allowed_tools.tools[0].function"),
        ({"tools": [tool()], "tool_choice": allowed("auto", named("weather"), named("b"))},
         "tool_choice.allowed_tools.tools[1].function.name"),
        ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tools": [tool()], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"parallel_tool_calls": 0}, "parallel_tool_calls"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(body: dict[str, Any], param: str) -> None:
    assert refused(body).param == param


def test_a_tool_that_is_deep_is_refused_by_its_place() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"properties": deep}
    assert refused({"tools": [tool(), tool("b", deep)]}).param == "tools[1]"
