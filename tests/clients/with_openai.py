"""openai-python: a chat of two turns, a stream, 50 at once, `parse()` and tools, whole and streamed."""

import asyncio
import json
from typing import Any

from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from tests.clients.case import (
    AGAIN,
    BEEPS,
    KEY,
    MODEL,
    PICTURE_URL,
    QUESTION,
    TOKENS,
    URL,
    WEATHER,
    Shape,
    run,
    seen,
    weather,
)  # fmt: skip

CLIENT = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ASKED: Any = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": PICTURE_URL}},
            {"type": "text", "text": QUESTION},
        ],
    }
]
TOOLS: Any = [WEATHER]
N_STREAMS = 50
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


def chat() -> None:
    answer = CLIENT.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=TOKENS, temperature=0)
    seen(answer.choices[0].message.content)


def stream() -> None:
    chunks = CLIENT.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    usage, texts = None, []
    for chunk in chunks:
        usage = chunk.usage or usage
        texts += [choice.delta.content or "" for choice in chunk.choices]
    seen("".join(texts))
    assert usage and usage.completion_tokens > 0


def turns() -> None:
    first = CLIENT.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=TOKENS, temperature=0)
    history: Any = [*ASKED, first.choices[0].message.to_dict(), {"role": "user", "content": AGAIN}]
    second = CLIENT.chat.completions.create(model=MODEL, messages=history, max_tokens=TOKENS, temperature=0)
    seen(second.choices[0].message.content)


def many_streams() -> None:
    """All are open before the first one is read to its end."""

    async def text_of(client: AsyncOpenAI) -> str:
        asked: Any = {"model": MODEL, "messages": ASKED, "max_tokens": TOKENS, "temperature": 0}
        chunks = await client.chat.completions.create(**asked, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])

    async def work() -> list[str]:
        async with AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*(text_of(client) for _ in range(N_STREAMS)))

    texts = asyncio.run(work())
    assert len(texts) == N_STREAMS
    for text in texts:
        seen(text)


def structured() -> None:
    answer = CLIENT.chat.completions.parse(
        model=MODEL, messages=ASKED, max_tokens=TOKENS, temperature=0, response_format=Shape
    )
    assert isinstance(answer.choices[0].message.parsed, Shape), answer
    with CLIENT.chat.completions.stream(
        model=MODEL, messages=ASKED, max_tokens=TOKENS, temperature=0, response_format=Shape
    ) as events:
        assert isinstance(events.get_final_completion().choices[0].message.parsed, Shape)


def json_object() -> None:
    answer = CLIENT.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=TOKENS, temperature=0, response_format={"type": "json_object"}
    )
    choice = answer.choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)
    else:
        assert (choice.message.content or "").startswith("{")


def tools() -> None:
    for choice in ("required", NAMED):
        asked: Any = [*ASKED, {"role": "assistant", "content": "A red circle."}]
        asked += [{"role": "user", "content": "What is the weather in Paris?"}]
        first = CLIENT.chat.completions.create(
            model=MODEL,
            messages=asked,
            max_tokens=TOKENS,
            temperature=0,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
        ).choices[0]
        [call] = first.message.tool_calls or []
        assert isinstance(call, ChatCompletionMessageFunctionToolCall) and call.function.name == "weather"
        assert first.message.content is None
        said = weather(**json.loads(call.function.arguments))
        asked += [first.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": said}]
        last = CLIENT.chat.completions.create(
            model=MODEL, messages=asked, max_tokens=TOKENS, temperature=0, tools=TOOLS, tool_choice="none"
        ).choices[0]
        assert last.message.content and not last.message.tool_calls, last


def streamed_tools() -> None:
    with CLIENT.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "The weather in Rome?"}], max_tokens=TOKENS,
        temperature=0, tools=TOOLS, tool_choice="required", parallel_tool_calls=False,
    ) as events:  # fmt: skip
        pieces = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
        choice = events.get_final_completion().choices[0]
    [call] = choice.message.tool_calls or []
    assert "".join(pieces) == call.function.arguments
    assert choice.finish_reason == "tool_calls" and weather(**json.loads(call.function.arguments))


def transcriptions() -> None:
    """The embedded model hears beeps, not words: what it is asked stands in `prompt`."""
    asked: Any = {"model": MODEL, "prompt": "How many beeps do you hear?"}
    for form in ("json", "text"):
        answer: Any = CLIENT.audio.transcriptions.create(**asked, file=("a.wav", BEEPS), response_format=form)
        assert "3" in (answer if form == "text" else answer.text), answer
    *pieces, done = CLIENT.audio.transcriptions.create(**asked, file=("a.wav", BEEPS), stream=True)
    assert "".join(piece.delta for piece in pieces) == done.text and "3" in done.text
    assert CLIENT.audio.transcriptions.create(model=MODEL, file=("a.wav", BEEPS)).usage


if __name__ == "__main__":
    run(chat, stream, turns, many_streams, structured, json_object, tools, streamed_tools, transcriptions)
