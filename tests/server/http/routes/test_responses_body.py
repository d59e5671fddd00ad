"""POST /v1/responses: its body becomes the chat that the other route reads, and errors name its own fields."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from server.http.routes.responses_body import NAMES, ResponsesRequest, read_responses
from server.http.routes.responses_items import REFERENCE
from server.http.routes.vllm_fields import RESPONSES_FIELDS
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tests.server.http.request_bodies import openai, read_openai
from tests.tables import each_of
from tokenization.chat.errors import ChatError

PNG = "data:image/png;base64,AAAA"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "weather", "description": "a forecast", "parameters": CITY, "strict": True}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
USER = {"role": "user", "content": "Hi"}


def asked(**fields: Any) -> ResponsesRequest:
    return read_responses(json.dumps({"input": "Hi", **fields}).encode(), "r1")


def read(**fields: Any) -> ChatRequest:
    return asked(**fields).request


def error_of(**fields: Any) -> ChatError | Refusal:
    with pytest.raises((ChatError, Refusal)) as caught:
        asked(**fields)
    return caught.value  # type: ignore[return-value]


def test_tools_and_their_choice_are_those_of_the_chat_route() -> None:
    chat_tool = {"type": "function", "function": {key: WEATHER[key] for key in WEATHER if key != "type"}}
    named = {"type": "function", "name": "weather"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    nested = {"type": "function", "function": {"name": "weather"}}
    pairs: list[tuple[Any, Any]] = [
        *((word, word) for word in (None, "auto", "none", "required")),
        (named, nested),
        (allowed, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [nested]}}),
    ]
    for ours, theirs in pairs:
        one = read(tools=[WEATHER], tool_choice=ours, parallel_tool_calls=False)
        other = read_openai(openai(tools=[chat_tool], tool_choice=theirs, parallel_tool_calls=False))
        assert one.chat == other.chat and (one.tools is None) == (other.tools is None)
        if one.tools is not None and other.tools is not None:
            assert [tool.param for tool in one.tools.tools] == ["tools[0].parameters"]
            assert replace(one.tools, tools=other.tools.tools) == other.tools
            assert [replace(tool, param="") for tool in one.tools.tools] == [
                replace(tool, param="") for tool in other.tools.tools
            ]


def test_a_choice_is_shown_as_it_was_read() -> None:
    """What nobody reads of it is not repeated."""
    more = {"x": "y" * 1000}
    one = {"type": "function", "name": WEATHER["name"]}
    several = {"type": "allowed_tools", "mode": "auto", "tools": [one]}
    for given, shown in (({**one, **more}, one), ({**several, **more, "tools": [{**one, **more}]}, several)):
        assert asked(tools=[WEATHER], tool_choice=given).said["tool_choice"] == shown


def test_forms_of_an_answer() -> None:
    schema = {"name": "city", "schema": CITY, "strict": True}
    grammar = read(text={"format": {"type": "json_schema", **schema}, "verbosity": "low"}).grammar
    theirs = read_openai(openai(response_format={"type": "json_schema", "json_schema": schema})).grammar
    assert grammar is not None and theirs is not None and grammar.param == "text.format.schema"
    assert replace(grammar, param=theirs.param) == theirs
    assert read(text={"format": {"type": "json_object"}}).grammar is not None
    for text in (None, {}, {"format": None}, {"format": {"type": "text"}}):
        assert read(text=text).grammar is None
    assert read(structured_outputs={"regex": "a+"}).grammar is not None


def test_parameters_of_sampling_are_those_of_all_routes() -> None:
    beside: dict[str, Any] = {
        "top_k": 3,
        "seed": 4,
        "ignore_eos": True,
        "stop": ["x"],
        "temperature": 0.5,
        "top_p": 0.25,
    }
    assert read(**beside, max_output_tokens=7).sampling == SamplingRequest(**beside, max_tokens=7)
    shown = read(include=["message.output_text.logprobs"], top_logprobs=5).sampling
    assert shown.logprobs and shown.top_logprobs == 5
    assert not read(top_logprobs=5, include=["reasoning.encrypted_content"]).sampling.logprobs


def test_what_has_no_effect_passes() -> None:
    one = asked(
        store=True, metadata={"a": "b"}, user="me", reasoning={"effort": "low"}, truncation="disabled",
        background=False, service_tier="auto", prompt_cache_key="k", safety_identifier="s", max_tool_calls=3,
        stream_options={"include_obfuscation": False}, previous_response_id=None, conversation=None,
    )  # fmt: skip
    assert one.request == read()
    assert one.said["store"] is False and one.said["metadata"] == {"a": "b"} and one.said["user"] == "me"


@each_of(
    ("fields", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [USER, {"id": "msg_1"}]}, "input[1]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
         "input[0].content[0].file_id"),
    ],
)  # fmt: skip
def test_what_would_have_to_be_stored_is_refused_with_the_way_out(fields: dict[str, Any], param: str) -> None:
    error = error_of(**fields)
    assert (error.param, error.code) == (param, "unsupported_parameter") and "store: false" in error.message
    assert "providerOptions: { openai: { store: false } }" in REFERENCE


@each_of(
    "tool",
    ["web_search", "web_search_preview", "file_search", "computer_use_preview", "mcp", "code_interpreter", "custom",
     "image_generation", "local_shell"],
)  # fmt: skip
def test_hosted_tools_are_refused_alone_and_left_out_beside_a_function(tool: str) -> None:
    error = error_of(tools=[{"type": tool}])
    assert (error.param, error.code) == ("tools[0].type", "unsupported_parameter") and f"'{tool}'" in error.message
    given = [{"type": tool}, WEATHER, {"type": tool, "name": "x", "tools": [WEATHER], "format": {"type": "text"}}]
    both, alone = asked(tools=given), asked(tools=[WEATHER])
    chats: list[Any] = [one.request.chat for one in (both, alone)]
    assert chats[0].tools == chats[1].tools and both.said["tools"] == alone.said["tools"]
    assert chats[0].left_out == (tool, f"{tool} x")
    assert error_of(tools=[*given, {**WEATHER, "name": "a b"}]).param == "tools[3].name"
    for choice in ({"type": tool}, {"type": tool, "name": "x"}):
        assert error_of(tools=given, tool_choice=choice).param == "tool_choice"
    assert error_of(input=[USER, {"type": f"{tool}_call", "id": "x"}]).param == "input[1].type"


IN_USER = [USER, {"role": "user", "content": [{"type": "input_text", "text": "a"}, None]}]


@each_of(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "id": "r", "summary": []}]}, "input"),
        ({"input": [USER, {"role": "tool", "content": "x"}]}, "input[1].role"),
        ({"input": [USER, {"role": "robot", "content": "x"}]}, "input[1].role"),
        ({"input": [USER, {"type": "message", "content": "x"}]}, "input[1].role"),
        ({"input": [USER, {"role": "user", "content": []}]}, "input[1].content"),
        ({"input": [USER, {"role": "user"}]}, "input[1].content"),
        ({"input": IN_USER}, "input[1].content[1]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": ""}]}]},
         "input[0].content[0].image_url"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PNG, "detail": "x"}]}]},
         "input[0].content[0].detail"),
        ({"input": [CALL, {**CALL, "arguments": {}}]}, "input[1].arguments"),
        ({"input": [CALL, {**CALL, "name": ""}]}, "input[1].name"),
        ({"input": [CALL, {**CALL, "call_id": None}]}, "input[1].call_id"),
        ({"input": [CALL, {"type": "function_call_output", "output": "x"}]}, "input[1].call_id"),
        ({"input": [CALL, {"type": "function_call_output", "call_id": "c"}]}, "input[1].output"),
        ({"tools": [WEATHER, {**WEATHER, "name": "a b"}]}, "tools[1].name"),
        ({"tools": [{**WEATHER, "parameters": {"type": "array"}}]}, "tools[0].parameters.type"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "x"}}, "tool_choice.mode"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto",
                                              "tools": [{"type": "function"}]}},
         "tool_choice.tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"name": "a", "schema": CITY}}}, "text.format.type"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": CITY}}}, "text.format.name"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"include": ["message.output_text.logprobs", "all"]}, "include[1]"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"messages": [USER]}, "messages"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_as_its_client_calls_it(fields: dict[str, Any], param: str) -> None:
    error = error_of(**fields)
    assert error.param == param
    if isinstance(error, Refusal):
        assert error.kind == "invalid_request"
        assert not any(error.message.startswith(f"{path}") for path in NAMES if path not in fields)


def test_a_body_without_input_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        read_responses(b"{}", "r1")
    assert (caught.value.param, caught.value.message) == ("input", "input: is missing")


@each_of(
    ("fields", "message"),
    [
        ({"max_output_tokens": 3, "min_tokens": 4},
         "min_tokens: min_tokens must not be larger than max_output_tokens"),
        ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
         "structured_outputs: text.format has named a form already; give one of the two"),
        ({"text": {"format": "json_object"}},
         'text.format: takes {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "name": "...", '
         '"schema": {...}}'),
    ],
)  # fmt: skip
def test_a_message_calls_every_field_as_its_client_does(fields: dict[str, Any], message: str) -> None:
    assert error_of(**fields).message == message


# Every place that is looked at, with a value that it takes.
PLACES: dict[str, Any] = {
    "input": [
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PNG, "detail": "low"},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            {"type": "input_file", "file_data": "data:video/mp4;base64,AAAA"},
        ]},
        {**SAID, "content": [{"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "c"}]},
        {key: value for key, value in CALL.items() if key != "id"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "d"}]},
    ],
    "instructions": "e", "max_output_tokens": 9, "max_tool_calls": 9, "top_logprobs": 1, "temperature": 1.0,
    "top_p": 0.5, "include": ["message.output_text.logprobs"], "metadata": {"f": "g"}, "user": "h", "store": True,
    "stream": True, "parallel_tool_calls": True, "reasoning": {}, "stream_options": {}, "model": "i",
    "service_tier": "auto", "prompt_cache_key": "j", "safety_identifier": "k",
    "text": {"format": {"type": "json_schema", "name": "l", "schema": {}, "strict": True}, "verbosity": "low"},
    "tools": [{**WEATHER, "name": "news", "parameters": {}}, WEATHER],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
}  # fmt: skip
# What is looked at nowhere, or stands for another field where it has another type.
FREE = ("input[1].id", "input[1].status", "input[2].id")
WRONG: list[Any] = [True, 7, 1.5, "x", [], [3], {}, {"x": 3}]


def places(value: Any, path: str = "") -> list[str]:
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inner = [(f"{path}.{key}".removeprefix("."), one) for key, one in value.items()]
    elif isinstance(value, list):
        inner = [(f"{path}[{i}]", one) for i, one in enumerate(value)]
    return [found for name, one in inner for found in (name, *places(one, name))]


def planted(path: str, wrong: Any, right: dict[str, Any] = PLACES) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.dumps(right))
    at: Any = body
    steps = path.replace("[", ".").replace("]", "").split(".")
    for step in steps[:-1]:
        at = at[int(step)] if step.isdecimal() else at[step]
    last: Any = int(steps[-1]) if steps[-1].isdecimal() else steps[-1]
    at[last] = wrong
    return body


@each_of("path", [path for path in places(PLACES) if path not in FREE and "tools[1]" not in path])
def test_a_wrong_type_anywhere_is_a_complaint_that_names_the_place(path: str) -> None:
    """Or nothing at all, where it is read; never another kind of error."""
    n_refused = 0
    for wrong in WRONG:
        body = planted(path, wrong)
        try:
            read_responses(json.dumps(body).encode(), "r1")
        except (ChatError, Refusal) as error:
            n_refused += 1
            assert not isinstance(error, Refusal) or error.kind == "invalid_request"
            param = error.param or ""
            assert param.startswith(path) or path.startswith(param) or param.rpartition(".")[0] in path, (wrong, param)
            assert param.partition(".")[0].partition("[")[0] in body, param
    assert n_refused >= 3


def test_each_field_of_the_table_stands_there_once() -> None:
    names = [field.name for field in RESPONSES_FIELDS]
    assert len(names) == len(set(names)) and {"input", "store", "top_k", "cache_salt"} <= set(names)
