"""pydantic-ai: an agent with a picture, a stream, NativeOutput and ToolOutput, and a tool round by direct requests."""

from typing import Any

from pydantic_ai import Agent, BinaryContent, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request_sync
from pydantic_ai.messages import ModelRequest, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from tests.clients.case import AGAIN, KEY, MODEL, PICTURE, QUESTION, TOKENS, URL, WEATHER, Shape, run, seen, weather

ASKED: Any = [BinaryContent(PICTURE, media_type="image/png"), QUESTION]
SETTINGS: Any = {"max_tokens": TOKENS, "temperature": 0}


def model() -> Any:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY))


def chat() -> None:
    seen(Agent(model(), model_settings=SETTINGS).run_sync(ASKED).output)


def stream() -> None:
    answer = Agent(model(), model_settings=SETTINGS).run_stream_sync(ASKED)
    pieces = list(answer.stream_text(delta=True, debounce_by=None))
    seen("".join(pieces))


def turns() -> None:
    agent: Any = Agent(model(), model_settings=SETTINGS)
    seen(agent.run_sync(AGAIN, message_history=agent.run_sync(ASKED).all_messages()).output)


def structured() -> None:
    for form in (NativeOutput(Shape), ToolOutput(Shape)):
        found = Agent(model(), output_type=form, model_settings=SETTINGS).run_sync(ASKED).output
        assert isinstance(found, Shape), found


def tools() -> None:
    """One request each: of an agent the library takes `required` on its first step alone from a capability."""
    function: Any = WEATHER["function"]
    ours = ToolDefinition(
        name=function["name"], description=function["description"], parameters_json_schema=function["parameters"]
    )
    asked: list[Any] = [ModelRequest.user_text_prompt("What is the weather in Paris?")]
    known = ModelRequestParameters(function_tools=[ours])
    first = model_request_sync(
        model(), asked, model_settings={**SETTINGS, "tool_choice": "required"}, model_request_parameters=known
    )
    [call] = [part for part in first.parts if isinstance(part, ToolCallPart)]
    result = ToolReturnPart(tool_name="weather", content=weather(**call.args_as_dict()), tool_call_id=call.tool_call_id)
    last = model_request_sync(
        model(), [*asked, first, ModelRequest(parts=[result])],
        model_settings={**SETTINGS, "tool_choice": "none"}, model_request_parameters=known,
    )  # fmt: skip
    assert last.text and not last.tool_calls, last


if __name__ == "__main__":
    run(chat, stream, turns, structured, tools)
