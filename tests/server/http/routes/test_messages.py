"""POST /v1/messages: its bodies become the chats of the other routes; complaints name its fields; events and ends."""

import json
from typing import Any

import pytest

from server.http.routes.messages import MessageSerializer, read_counted, read_messages
from server.request_context import RequestContext
from server.requests.answer import Delta
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from tests.server.doubles import chat_of
from tests.server.http.answers import ACCEPTED, DELTAS, TOKENS, answered, collected
from tests.server.http.request_bodies import openai, read_openai
from tests.server.http.routes.wrong_messages import BLUE, CITY, HI, TOOL, WRONG, result, use, words
from tests.tables import each_of
from tokenization.chat.blocks import chat_from_blocks
from tokenization.chat.errors import ChatError
from tokenization.text.call_parser import CallPiece

FAR = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
OURS = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
]
FUNCTION = {"type": "function", "function": {"name": "weather", "description": "a forecast", "parameters": CITY}}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": None, "messages": HI, "max_tokens": 9, **fields}).encode()


def read(**fields: Any) -> ChatRequest:
    return read_messages(body(**fields), "r1")


def chat_json(request: ChatRequest) -> Any:
    """The chat without the paths of its fields."""

    def bare(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [bare(inner) for inner in value]
        if hasattr(value, "__struct_fields__"):
            return {name: bare(getattr(value, name)) for name in value.__struct_fields__ if name != "param"}
        return value

    return bare(request.chat)


def test_a_chat_is_that_of_the_other_routes() -> None:
    """What models see cannot depend on the route: each message beside what OpenAI's clients would send."""
    calls = [
        {"id": n, "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}} for n in "ab"
    ]
    theirs = read(
        system=[words("Be brief."), {**words("Be kind."), "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [BLUE, FAR, words("What is this?")]},
            {"role": "assistant", "content": [words("I look."), use("a"), use("b")]},
            {"role": "user", "content": [result("a", words("one"), words("two")), result("b", BLUE), words("So?")]},
            {"role": "assistant", "content": "A circle."},
            {"role": "system", "content": "Be quick."},
            {"role": "user", "content": "Thanks"},
        ],
        tools=[{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    )
    ours = read_openai(
        openai(
            messages=[
                {"role": "system", "content": "Be brief.\nBe kind."},
                {"role": "user", "content": [*OURS, words("What is this?")]},
                {"role": "assistant", "content": [words("I look.")], "tool_calls": calls},
                {"role": "tool", "tool_call_id": "a", "content": [words("one"), words("two")]},
                {"role": "tool", "tool_call_id": "b", "content": OURS[:1]},
                {"role": "user", "content": [words("So?")]},
                {"role": "assistant", "content": "A circle."},
                {"role": "system", "content": "Be quick."},
                {"role": "user", "content": "Thanks"},
            ],
            tools=[FUNCTION],
            parallel_tool_calls=False,
        )
    )
    assert chat_json(theirs) == chat_json(ours)
    assert theirs.tools is not None and ours.tools is not None
    assert [(t.name, t.schema) for t in theirs.tools.tools] == [(t.name, t.schema) for t in ours.tools.tools]
    assert theirs.tools.single and theirs.tools.choice == "auto"
    assert theirs.tools.tools[0].param == "tools[0].input_schema"


def test_data_of_a_picture_that_is_a_url_already_is_taken_as_one() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "data:image/png; base64,AAAA"}
    block = {"type": "image", "source": source}
    (media,) = chat_from_blocks([{"role": "user", "content": [block]}], None).media
    assert media.source == source["data"]


def test_an_answer_goes_on_with_a_last_message_of_the_assistants() -> None:
    messages = [*HI, {"role": "assistant", "content": "The answer is"}]
    ours = read_openai(openai(messages=messages, continue_final_message=True))
    assert chat_json(read(messages=messages)) == chat_json(ours)
    called = read(messages=[*HI, {"role": "assistant", "content": [use("a")]}])
    assert not chat_json(called)["continue_final_message"]


def test_parameters_arrive() -> None:
    request = read(
        max_tokens=7, temperature=0.5, top_p=0.25, top_k=3, stop_sequences=["a", "b"], stream=True,
        metadata={"user_id": "x"}, thinking={"type": "disabled"}, service_tier="auto", cache_salt="s",
    )  # fmt: skip
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (7, 0.5, 0.25, 3)
    assert sampling.stop == ("a", "b") and request.stream and request.cache_salt == "s"
    assert request.parameter("stop") == "stop_sequences" and request.parameter("max_tokens") == "max_tokens"


@each_of(
    ("choice", "expected"),
    [("auto", "auto"), ("any", "required"), ("none", None), ("tool", "named")],
)
def test_choices_of_tools(choice: str, expected: str | None) -> None:
    named = {"name": "weather"} if choice == "tool" else {}
    offer = read(tools=[TOOL], tool_choice={"type": choice, **named}).tools
    assert (offer and offer.choice) == expected


@each_of(("fields", "param"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_complaint_names_the_field_as_this_route_calls_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((Refusal, ChatError)) as caught:
        read(**fields)
    error = caught.value
    assert isinstance(error, ChatError | Refusal) and error.param == param
    assert ".function" not in error.message


@each_of("thinking", [{"type": "enabled"}, {"type": "adaptive", "budget_tokens": 2048}])
def test_a_budget_goes_with_its_type(thinking: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        read(thinking=thinking)
    assert caught.value.param == "thinking"
    assert caught.value.message == ("thinking: budget_tokens must stand beside the type 'enabled', and beside no other")


def test_what_is_counted_is_what_is_answered() -> None:
    fields = {"system": "Be brief.", "tools": [TOOL], "tool_choice": {"type": "any"}}
    raw = json.dumps({"messages": HI, **fields}).encode()
    assert read_counted(raw, "r1").chat == read(**fields).chat


# ---- answers


def serializer() -> MessageSerializer:
    context = RequestContext("r1", cached_tokens=4)
    return MessageSerializer(ChatRequest(id="1", chat=chat_of("text"), chat_param="messages", context=context), "m")


def events(deltas: list[Delta]) -> list[dict[str, Any]]:
    """The objects of a stream; each is called as its type."""
    written = serializer()
    n_tokens = sum(len(delta.tokens) for delta in deltas)
    raw = b"".join([*(written.event(ACCEPTED, delta) for delta in deltas), written.closing(ACCEPTED, n_tokens)])
    found = []
    for event in raw.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def accumulated(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream."""
    message: dict[str, Any] = found[0]["message"]
    open_block: dict[str, Any] | None = None
    for event in found[1:]:
        kind = event["type"]
        if kind == "content_block_start":
            assert open_block is None and event["index"] == len(message["content"])
            open_block, pieces = event["content_block"], ""
            message["content"].append(open_block)
        elif kind == "content_block_delta":
            assert open_block is not None and event["index"] == len(message["content"]) - 1
            pieces += event["delta"].get("text", event["delta"].get("partial_json"))
        elif kind == "content_block_stop":
            assert open_block is not None
            open_block |= {"text": pieces} if open_block["type"] == "text" else {"input": json.loads(pieces)}
            open_block = None
        elif kind == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
    assert found[-1] == {"type": "message_stop"} and open_block is None
    return message


def test_a_stream_is_the_answer_in_one_piece() -> None:
    whole = answered(serializer(), ACCEPTED, collected(DELTAS))
    assert accumulated(events(DELTAS)) == whole
    assert whole["content"] == [words('a "quote"\n\u2028你')] and whole["stop_reason"] == "end_turn"
    assert (whole["id"], whole["type"], whole["role"], whole["model"]) == ("msg_1", "message", "assistant", "m")
    assert whole["usage"] == {
        "input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 3,
    }  # fmt: skip


CALLS = (
    CallPiece(index=0, id="a", name="weather", arguments='{"city": "Rome"}'),
    CallPiece(index=1, id="b", name="news", arguments="{}"),
)  # fmt: skip


def test_calls_are_blocks_of_their_own() -> None:
    deltas = [
        Delta(text="I look.", tokens=TOKENS[:1]),
        Delta(text="", tokens=TOKENS[:1], calls=(CallPiece(index=0, id="a", name="weather"),)),
        Delta(text="", tokens=TOKENS[:1], calls=(CallPiece(index=0, arguments='{"city": '),)),
        Delta(text="", tokens=TOKENS[:1], calls=(CallPiece(index=0, arguments='"Rome"}'), CALLS[1])),
        Delta(text="", tokens=TOKENS[:1], finish="tool_calls"),
    ]
    whole = answered(
        serializer(), ACCEPTED, [Delta(text="I look.", tokens=TOKENS[:1] * 5, finish="tool_calls", calls=CALLS)]
    )
    assert accumulated(events(deltas)) == whole and whole["stop_reason"] == "tool_use"
    assert whole["content"] == [
        words("I look."), {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}},
        {"type": "tool_use", "id": "b", "name": "news", "input": {}},
    ]  # fmt: skip


@each_of(
    ("fields", "expected"),
    [
        ({"finish": "stop"}, ("end_turn", None)),
        ({"finish": "length"}, ("max_tokens", None)),
        ({"finish": "stop", "cut": "###"}, ("stop_sequence", "###")),
        ({"finish": "tool_calls", "calls": CALLS}, ("tool_use", None)),
        ({"finish": "stop", "calls": CALLS}, ("tool_use", None)),  # of a call that the request names
        ({"finish": "length", "calls": CALLS}, ("max_tokens", None)),
    ],
)
def test_why_an_answer_ended(fields: dict[str, Any], expected: tuple[str, str | None]) -> None:
    delta = Delta(text="", tokens=TOKENS[:1], **fields)
    for said in (answered(serializer(), ACCEPTED, [delta]), accumulated(events([delta]))):
        assert (said["stop_reason"], said["stop_sequence"]) == expected


def test_a_call_that_was_cut_is_what_is_there_of_it() -> None:
    for arguments, expected in (
        ('{"city": "Ro', {"city": "Ro"}),
        ('{"city": ', {}),
        ("", {}),
        ('{"city": ' + "[" * 999, {}),
        ('{"city": ' + "9" * 5000, {}),
    ):
        call = CallPiece(index=0, id="a", name="weather", arguments=arguments)
        said = answered(serializer(), ACCEPTED, [Delta(text="", tokens=TOKENS[:1], finish="length", calls=(call,))])
        assert said["content"][0]["input"] == expected
