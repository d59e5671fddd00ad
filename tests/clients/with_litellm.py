"""LiteLLM's SDK, under its provider for vLLM and the one for anything like OpenAI."""

import gc
import json
from typing import Any

import litellm

from tests.clients.case import AGAIN, KEY, MODEL, PICTURE_URL, QUESTION, TOKENS, URL, WEATHER, Shape, run, seen, weather

ASKED: Any = [
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": PICTURE_URL}},
            {"type": "text", "text": QUESTION},
        ],
    }
]
PROVIDERS = ("openai", "hosted_vllm")


def complete(provider: str, messages: Any = ASKED, **wishes: Any) -> Any:
    return litellm.completion(
        model=f"{provider}/{MODEL}", api_base=f"{URL}/v1", api_key=KEY, messages=messages, max_tokens=TOKENS,
        temperature=0, max_retries=0, **wishes,
    )  # fmt: skip


def chat() -> None:
    for provider in PROVIDERS:
        seen(complete(provider).choices[0].message.content)


def stream() -> None:
    for provider in PROVIDERS:
        pieces = [chunk.choices[0].delta.content or "" for chunk in complete(provider, stream=True)]
        seen("".join(pieces))
        # It leaves its answer's stream open. Collected inside httpcore's pool, whose lock it takes, it hangs for good.
        gc.collect()


def turns() -> None:
    for provider in PROVIDERS:
        said = complete(provider).choices[0].message.model_dump(exclude_none=True)
        seen(complete(provider, [*ASKED, said, {"role": "user", "content": AGAIN}]).choices[0].message.content)


def structured() -> None:
    for provider in PROVIDERS:
        Shape.model_validate_json(complete(provider, response_format=Shape).choices[0].message.content)


def tools() -> None:
    for provider in PROVIDERS:
        asked: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
        first = complete(provider, asked, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False).choices[0]
        [call] = first.message.tool_calls
        assert first.finish_reason == "tool_calls" and call.function.name == "weather"
        said = weather(**json.loads(call.function.arguments))
        asked += [first.message.model_dump(exclude_none=True)]
        asked += [{"role": "tool", "tool_call_id": call.id, "content": said}]
        last = complete(provider, asked, tools=[WEATHER], tool_choice="none").choices[0]
        assert last.message.content and not last.message.tool_calls, last


if __name__ == "__main__":
    run(chat, stream, turns, structured, tools)
