"""The routes of chats, as the document tells them: POST /chat and POST /v1/chat/completions."""

from typing import Any

from pydantic import Field

from server.http.openapi.answers import ChatCompletion, ChatCompletionChunk, NativeAnswer, NativeEvent
from server.http.openapi.described import DescribedRoute
from server.http.openapi.request_fields import (
    ChatMessage,
    Closed,
    FormFields,
    NativeInputs,
    NativeResult,
    NativeTurn,
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


class NativeParameters(SamplingRequest, Closed):
    """Parameters of sampling, and what POST /chat has beside them."""

    draw_boxes: bool | None = Field(None, description="The picture is drawn with the boxes of the answer.")


class NativeChat(FormFields, ToolFields, NativeBody, Closed):
    """One chat in the native form."""

    inputs: NativeInputs | None = Field(None, description="Needed, unless `tool_results` stand there.")
    tool_results: list[NativeResult] | None = Field(
        None, description="What the calls of the last answer came to; `inputs` may stand behind them."
    )
    history: list[NativeTurn] | None = Field(None, description="Earlier questions with their answers.")
    system: str | None = Field(None, description="The system message.")
    parameters: NativeParameters | None = Field(None, description="Parameters of sampling.")


class ChatCompletionRequest(FormFields, ToolFields, RenderingFields, SamplingRequest, CompletionBody):
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
