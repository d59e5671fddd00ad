"""The routes of chats, as the document tells them: POST /chat and POST /v1/chat/completions."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from server.http.openapi.answers import ChatCompletion, ChatCompletionChunk, NativeAnswer, NativeEvent
from server.http.openapi.described import DescribedRoute
from server.http.openapi.request_fields import (
    ChatMessage,
    Closed,
    EarlierCall,
    FormFields,
    LabelFields,
    NativeInputs,
    RenderingFields,
    ToolFields,
)
from server.http.routes.chat_completions import CompletionBody
from server.http.routes.native import NativeBody
from server.requests.sampling import SamplingRequest

PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFklEQVR42mP4z8BAEmIY1TCqYfhqAACQ+f8B8u7o"
    "VwAAAABJRU5ErkJggg=="
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red", "green", "blue"]}}, "required": ["colour"]}


class NativeResult(Closed):
    """What a tool gave."""

    tool_call_id: str | None = Field(None, description="The call that it answers.")
    inputs: NativeInputs


def one_of(*names: str) -> dict[str, Any]:
    """A form of which one of these fields is needed."""
    return {"anyOf": [{"required": [name]} for name in names]}


class NativeQuestion(Closed):
    """What an answer follows."""

    inputs: NativeInputs = Field(default_factory=list)
    tool_results: Annotated[list[NativeResult], Field(min_length=1)] = Field(
        default_factory=list, description="What tools gave; before `inputs`, or in their place."
    )


class NativeTurn(NativeQuestion):
    """An earlier question and its answer."""

    model_config = ConfigDict(
        json_schema_extra={"allOf": [one_of("inputs", "tool_results"), one_of("text", "tool_calls")]}
    )

    text: str = Field("", description="What was answered.")
    tool_calls: Annotated[list[EarlierCall], Field(min_length=1)] = Field(
        default_factory=list, description="Calls of the answer, as they came."
    )
    reasoning: str | None = Field(None, description="Thoughts of the answer, as they came.")


class NativeParameters(SamplingRequest, Closed):
    """Parameters of sampling, and what POST /chat has beside them."""

    draw_boxes: bool | None = Field(None, description="The picture is drawn with the boxes of the answer.")


class NativeChat(FormFields, ToolFields, NativeBody, NativeQuestion):
    """One chat in the native form."""

    model_config = ConfigDict(json_schema_extra=one_of("inputs", "tool_results"))

    history: list[NativeTurn] | None = Field(None, description="Earlier questions with their answers.")
    system: str | None = Field(None, description="The system message.")
    parameters: NativeParameters | None = Field(None, description="Parameters of sampling.")


class ChatCompletionRequest(
    FormFields, ToolFields, RenderingFields, LabelFields, SamplingRequest, CompletionBody
):  # fmt: skip
    """OpenAI's chat completion request. Other fields are ignored, but for some that would change the answer."""

    messages: list[ChatMessage] = Field(min_length=1)


def asked(text: str) -> list[dict[str, object]]:
    """One message of a user about the picture of the examples."""
    parts = [{"type": "image_url", "image_url": {"url": PICTURE}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


NATIVE = DescribedRoute(
    path="/chat", methods=("POST",), tag="chats", summary="One chat, native form",
    told="A body that is a bare list is read as `inputs`. Other fields are a 400.",
    body=NativeChat | NativeInputs, answer=NativeAnswer, events=NativeEvent, timed=True, may_miss=True,
    examples={
        "a text": {"inputs": [{"text": "Hello"}], "parameters": {"max_tokens": 8, "temperature": 0}},
        "a picture": {
            "inputs": [{"image": PICTURE}, {"text": "What is in this picture?"}], "parameters": {"max_tokens": 8}
        },
        "a bare list": [{"text": "Hello"}],
        "a second question, as a stream": {
            "history": [{"inputs": [{"text": "Hello"}], "text": "Hello! What may I look at?"}],
            "inputs": [{"text": "A picture."}], "system": "Be brief.", "parameters": {"max_tokens": 8}, "stream": True,
        },
        "the result of a call": {
            "history": [{"inputs": [{"text": "What is the weather in Paris?"}], "tool_calls": [CALL]}],
            "tool_results": [{"tool_call_id": "call_1", "inputs": [{"text": "Rain"}]}], "tools": [WEATHER],
            "parameters": {"max_tokens": 8},
        },
    },
)  # fmt: skip
COMPLETIONS = DescribedRoute(
    path="/v1/chat/completions", methods=("POST",), tag="chats", summary="One chat, OpenAI's form",
    told="Plain and streamed, for OpenAI's SDK and what is built on it.",
    body=ChatCompletionRequest, answer=ChatCompletion, events=ChatCompletionChunk, timed=True, may_miss=True,
    examples={
        "a text": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0},
        "a picture, as a stream": {
            "messages": asked("What is in this picture?"), "max_tokens": 8, "stream": True,
            "stream_options": {"include_usage": True},
        },
        "an answer in a form": {
            "messages": asked("Which colour is it?"), "max_tokens": 32,
            "response_format": {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}},
        },
        "a tool": {
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": [WEATHER],
            "max_tokens": 32,
        },
        "log-probabilities of two answers": {
            "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "n": 2, "seed": 7, "temperature": 1,
            "logprobs": True, "top_logprobs": 2,
        },
    },
)  # fmt: skip
ROUTES = (NATIVE, COMPLETIONS)
