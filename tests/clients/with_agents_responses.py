"""OpenAI's Agents SDK as it is without a model of its own choice: the Responses API, with tracing off."""

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)

from tests.clients.case import MODEL, QUESTION, TOKENS, Shape, run, seen, weather
from tests.clients.with_agents_sdk import ASKED, CLIENT, done


def agent(**settings: Any) -> Any:
    """An agent whose model is a name alone."""
    wishes = ModelSettings(max_tokens=TOKENS, temperature=0, tool_choice=settings.pop("tool_choice", None))
    return Agent(name="ferry", instructions="You see pictures.", model=MODEL, model_settings=wishes, **settings)


def two_turns() -> None:
    """The second one sends the items of the first, ids and all."""

    async def work() -> None:
        first = await Runner.run(agent(), ASKED)
        seen(first.final_output)
        second = await Runner.run(agent(), [*first.to_input_list(), {"role": "user", "content": QUESTION}])
        assert second.final_output
        used = [result.context_wrapper.usage.input_tokens for result in (first, second)]
        assert 0 < used[0] < used[1], used

    done(work())


def stream() -> None:
    async def work() -> None:
        running = Runner.run_streamed(agent(), ASKED)
        kinds = [event.type async for event in running.stream_events()]
        assert kinds.count("raw_response_event") > 5, kinds
        seen(running.final_output)

    done(work())


def structured() -> None:
    async def work() -> None:
        assert isinstance((await Runner.run(agent(output_type=Shape), ASKED)).final_output, Shape)

    done(work())


def tools() -> None:
    """Asked for with `required`, whole and streamed, and after the call with `auto`."""

    async def work() -> None:
        ours: Any = function_tool(weather)
        able = agent(tools=[ours], tool_choice="required")
        running = Runner.run_streamed(able, "What is the weather in Paris?")
        async for _ in running.stream_events():
            pass
        for result in (await Runner.run(able, "What is the weather in Paris?"), running):
            kinds = [item.type for item in result.new_items]
            assert kinds[:2] == ["tool_call_item", "tool_call_output_item"] and result.final_output, kinds

    done(work())


if __name__ == "__main__":
    set_tracing_disabled(True)
    set_default_openai_client(CLIENT, use_for_tracing=False)
    run(two_turns, stream, structured, tools)
