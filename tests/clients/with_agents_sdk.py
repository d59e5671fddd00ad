"""OpenAI's Agents SDK with its chat-completions model and tracing off."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from tests.clients.case import AGAIN, KEY, MODEL, PICTURE_URL, QUESTION, TOKENS, URL, Shape, run, seen, weather

ASKED: Any = [
    {
        "role": "user",
        "content": [
            {"type": "input_image", "image_url": PICTURE_URL, "detail": "auto"},
            {"type": "input_text", "text": QUESTION},
        ],
    }
]
CLIENT = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
LOOP = asyncio.new_event_loop()  # one for all parts: the SDK ends connections after a part


def agent(**settings: Any) -> Any:
    """An agent of this server's model."""
    wishes = ModelSettings(max_tokens=TOKENS, temperature=0, tool_choice=settings.pop("tool_choice", None))
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=CLIENT)
    return Agent(name="ferry", instructions="You see pictures.", model=model, model_settings=wishes, **settings)


def done(work: Coroutine[Any, Any, None]) -> None:
    LOOP.run_until_complete(work)


def chat() -> None:
    async def work() -> None:
        seen((await Runner.run(agent(), ASKED)).final_output)

    done(work())


def stream() -> None:
    async def work() -> None:
        running = Runner.run_streamed(agent(), ASKED)
        kinds = [event.type async for event in running.stream_events()]
        assert kinds.count("raw_response_event") > 2, kinds
        seen(running.final_output)

    done(work())


def turns() -> None:
    async def work() -> None:
        first = await Runner.run(agent(), ASKED)
        asked: Any = [*first.to_input_list(), {"role": "user", "content": AGAIN}]
        seen((await Runner.run(agent(), asked)).final_output)

    done(work())


def structured() -> None:
    async def work() -> None:
        assert isinstance((await Runner.run(agent(output_type=Shape), ASKED)).final_output, Shape)

    done(work())


def tools() -> None:
    """The SDK asks with `required`, and after the call with `auto`."""

    async def work() -> None:
        ours: Any = function_tool(weather)
        result = await Runner.run(agent(tools=[ours], tool_choice="required"), "What is the weather in Paris?")
        kinds = [item.type for item in result.new_items]
        assert kinds[:2] == ["tool_call_item", "tool_call_output_item"] and result.final_output, kinds

    done(work())


if __name__ == "__main__":
    set_tracing_disabled(True)
    run(chat, stream, turns, structured, tools)
