"""openai-python's Responses: whole, streamed, `parse()`, tools, a second turn, and fifty streams at once."""

import asyncio
import json
from typing import Any, Literal

from openai import AsyncOpenAI, BadRequestError, OpenAI, pydantic_function_tool
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from tests.clients.case import KEY, MODEL, PICTURE_URL, QUESTION, TOKENS, URL, WEATHER, Shape, run, seen, weather

CLIENT = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ASKED: Any = [
    {
        "role": "user",
        "content": [
            {"type": "input_image", "image_url": PICTURE_URL, "detail": "auto"},
            {"type": "input_text", "text": QUESTION},
        ],
    }
]
COMMON: Any = {"model": MODEL, "max_output_tokens": TOKENS, "temperature": 0, "store": False}
TOOL: Any = {"type": "function", "strict": True, **WEATHER["function"]}  # type: ignore[dict-item]
AGAIN: Any = {"role": "user", "content": QUESTION}


class Forecast(BaseModel):
    """The weather in a city."""

    city: Literal["Paris", "Rome"]


def create() -> None:
    """A second turn has the first one's items, ids and all."""
    first = CLIENT.responses.create(**COMMON, input=ASKED, instructions="You see pictures.", metadata={"a": "b"})
    seen(first.output_text)
    assert first.status == "completed" and first.store is False and first.metadata == {"a": "b"}
    assert first.usage and first.usage.output_tokens > 0 and first.usage.input_tokens_details.cached_tokens >= 0
    second = CLIENT.responses.create(**COMMON, input=[*ASKED, *first.output, AGAIN])
    assert second.output_text and second.usage and second.usage.input_tokens > first.usage.input_tokens


def stored() -> None:
    """Nothing is, whatever is asked for: the answer says so, and a reference is refused with the way out."""
    first = CLIENT.responses.create(**{**COMMON, "store": True}, input="Hello")
    assert first.store is False
    try:
        CLIENT.responses.create(**COMMON, input="Hello", previous_response_id=first.id)
    except BadRequestError as error:
        assert error.param == "previous_response_id" and "store: false" in error.message, error
    else:
        raise AssertionError("it was taken")


def stream() -> None:
    texts, usage = [], None
    with CLIENT.responses.create(
        **COMMON, input=ASKED, stream=True, include=["message.output_text.logprobs"], top_logprobs=2
    ) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                texts.append(event.delta)
                assert all(len(entry.top_logprobs or ()) == 2 for entry in event.logprobs)
            elif event.type == "response.completed":
                usage = event.response.usage
    seen("".join(texts))
    assert usage and usage.output_tokens > 0


def cut() -> None:
    answer = CLIENT.responses.create(**{**COMMON, "max_output_tokens": 1}, input=ASKED)
    assert answer.status == "incomplete" and answer.incomplete_details
    assert answer.incomplete_details.reason == "max_output_tokens"


def parse() -> None:
    answer = CLIENT.responses.parse(**COMMON, input=ASKED, text_format=Shape)
    assert isinstance(answer.output_parsed, Shape), answer
    with CLIENT.responses.stream(**COMMON, input=ASKED, text_format=Shape) as events:
        assert isinstance(events.get_final_response().output_parsed, Shape)


def tools() -> None:
    for choice in ("required", {"type": "function", "name": "weather"}):
        asked: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
        first = CLIENT.responses.create(
            **COMMON, input=asked, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False
        )  # type: ignore[call-overload]
        [call] = first.output
        assert isinstance(call, ResponseFunctionToolCall) and call.name == "weather", first
        said = weather(**json.loads(call.arguments))
        asked += [*first.output, {"type": "function_call_output", "call_id": call.call_id, "output": said}]
        last = CLIENT.responses.create(**COMMON, input=asked, tools=[TOOL], tool_choice="none")
        assert last.output_text, last


def streamed_tools() -> None:
    asked: Any = pydantic_function_tool(Forecast)
    with CLIENT.responses.stream(
        **COMMON, input="The weather in Rome?", tools=[asked], tool_choice="required", parallel_tool_calls=False
    ) as events:
        pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        [call] = events.get_final_response().output
    assert isinstance(call, ResponseFunctionToolCall) and "".join(pieces) == call.arguments
    assert set(json.loads(call.arguments)) == {"city"}


def fifty_streams() -> None:
    async def one(client: AsyncOpenAI) -> str:
        events = await client.responses.create(**COMMON, input=ASKED, stream=True)
        return "".join([event.delta async for event in events if event.type == "response.output_text.delta"])

    async def all_of_them() -> list[str]:
        async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(50)))

    for text in asyncio.run(all_of_them()):
        seen(text)


if __name__ == "__main__":
    run(create, stored, stream, cut, parse, tools, streamed_tools, fifty_streams)
