"""Anthropic's SDK: two turns, streams, pictures, a tool round, a count and its errors; its own types check events."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import anthropic
from anthropic import Anthropic
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from pydantic import TypeAdapter

from tests.clients.case import KEY, MODEL, PICTURE, QUESTION, TOKENS, URL, WEATHER, run, seen, weather

CLIENT = Anthropic(base_url=URL, api_key=KEY, max_retries=0)
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
BLOCK: Any = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PICTURE).decode()},
}
ASKED: Any = [{"role": "user", "content": [BLOCK, {"type": "text", "text": QUESTION}]}]
GREEDY = {"temperature": 0}  # which the SDK has no name for
FUNCTION: Any = WEATHER["function"]
TOOLS: Any = [
    {
        "name": "weather",
        "description": FUNCTION["description"],
        "input_schema": FUNCTION["parameters"],
        "cache_control": {"type": "ephemeral"},
    }
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "compat.md"
HEADERS = {"betas", "user_profile_id", "workspace_id"}  # which the SDK takes as if they were fields
PARIS: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def checked(message: Message) -> Message:
    """By the SDK's own types: it builds an answer without a look at them."""
    Message.model_validate(message.to_dict(), strict=True)
    assert message._request_id, "the header that the SDK reads"
    return message


def two_turns() -> None:
    first = checked(CLIENT.messages.create(model=MODEL, messages=ASKED, max_tokens=TOKENS, extra_body=GREEDY))
    seen(text_of(first))
    assert first.stop_reason == "end_turn" and first.usage.output_tokens > 0 and first.usage.input_tokens > 0
    then = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": QUESTION}]
    second = checked(
        CLIENT.messages.create(
            model=MODEL,
            messages=then,
            max_tokens=TOKENS,
            system=[{"type": "text", "text": "Be brief."}],
            metadata={"user_id": "somebody"},
            extra_body={**GREEDY, "top_k": 1, "top_p": 0.5},
        )  # fmt: skip
    )
    assert text_of(second)


def stream() -> None:
    whole = CLIENT.messages.create(model=MODEL, messages=ASKED, max_tokens=TOKENS, extra_body=GREEDY)
    with CLIENT.messages.stream(model=MODEL, messages=ASKED, max_tokens=TOKENS, extra_body=GREEDY) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    seen(text)
    assert text == text_of(final) == text_of(whole) and final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def events() -> None:
    """As they come over the wire, each strictly one of the SDK's."""
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": TOKENS, "extra_body": GREEDY, "stream": True}
    kinds = []
    with CLIENT.messages.with_streaming_response.create(**asked) as answer:
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                assert event["type"] == name
                kinds.append(name)
                if name != "ping":
                    EVENTS.validate_python(event, strict=True)
    assert kinds[:4] == ["message_start", "ping", "content_block_start", "content_block_delta"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds


def ends() -> None:
    words = text_of(CLIENT.messages.create(model=MODEL, messages=ASKED, max_tokens=TOKENS, extra_body=GREEDY)).split()
    cut = CLIENT.messages.create(
        model=MODEL, messages=ASKED, max_tokens=TOKENS, extra_body=GREEDY, stop_sequences=["no such words", words[-1]]
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", words[-1]), cut
    short = CLIENT.messages.create(model=MODEL, messages=ASKED, max_tokens=1, extra_body=GREEDY)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 1)


def tools() -> None:
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
        asked: Any = {"model": MODEL, "max_tokens": TOKENS, "extra_body": GREEDY, "tools": TOOLS}
        first = checked(CLIENT.messages.create(**asked, messages=PARIS, tool_choice=choice))
        assert first.stop_reason == "tool_use", first
        [call] = [block for block in first.content if block.type == "tool_use"]
        with CLIENT.messages.stream(**asked, messages=PARIS, tool_choice=choice) as streamed:
            pieces = [event.partial_json for event in streamed if event.type == "input_json"]
            again = streamed.get_final_message()
        [same] = [block for block in again.content if block.type == "tool_use"]
        assert (same.name, same.input, again.stop_reason) == (call.name, call.input, "tool_use")
        assert json.loads("".join(pieces)) == call.input and call.name == "weather"
        said: Any = [{"type": "text", "text": weather(**call.input)}, BLOCK]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": said}
        then: Any = [*PARIS, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        last = CLIENT.messages.create(**asked, messages=then, tool_choice={"type": "none"})
        assert text_of(last) and last.stop_reason != "tool_use", last


def count_tokens() -> None:
    asked: Any = {"model": MODEL, "messages": ASKED, "system": "Be brief.", "tools": TOOLS}
    n = CLIENT.messages.count_tokens(**asked).input_tokens
    usage = CLIENT.messages.create(**asked, max_tokens=1, tool_choice={"type": "none"}).usage
    assert n == usage.input_tokens + (usage.cache_read_input_tokens or 0) > 100


def errors() -> None:
    told: list[anthropic.APIStatusError] = []
    for error, asked in (
        (anthropic.BadRequestError, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (anthropic.NotFoundError, {"model": "no-such-model"}),
    ):
        try:
            CLIENT.messages.create(**{"model": MODEL, "messages": PARIS, "max_tokens": 9, **asked})
        except error as raised:
            told.append(raised)
    assert [error.type for error in told] == ["invalid_request_error", "not_found_error"], told
    assert all(error.request_id for error in told)
    body: Any = told[0].body
    assert body["type"] == "error" and body["error"]["param"] == "thinking"


def fields() -> None:
    """Each that the SDK knows, of its beta, too, has its row."""
    section = PAGE.read_text(encoding="utf-8").partition("## Fields of Anthropic's messages")[2].partition("\n## ")[0]
    rows = [line.partition(" |")[0] for line in section.splitlines() if line.startswith("| `")]
    missing = MessageCreateParamsBase.__annotations__.keys() - HEADERS - set(re.findall(r"`(\w+)[.`]", " ".join(rows)))
    assert not missing, missing


if __name__ == "__main__":
    run(two_turns, stream, events, ends, tools, count_tokens, errors, fields)
