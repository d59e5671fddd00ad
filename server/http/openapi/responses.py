"""The route of OpenAI's Responses, as the document tells it: POST /v1/responses and its items."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from server.http.openapi.chats import COLOUR, PICTURE, WEATHER
from server.http.openapi.described import DescribedRoute
from server.http.openapi.request_fields import (
    FunctionOffered,
    FunctionWanted,
    InputSoundPart,
    MediaSource,
    NamedSchema,
    PictureOptions,
    RefusalPart,
    RenderingFields,
    StructuredOutputs,
    VideoOptions,
    VideoPart,
)
from server.http.openapi.response_answers import ResponseAnswer, ResponsesEvent
from server.http.routes.responses_body import ResponsesBody, TextField
from server.requests.sampling import SamplingRequest
from tokenization.chat.tool_offer import MOST_TOOLS


class InputText(BaseModel):
    type: Literal["input_text", "output_text"]
    text: str


class InputPicture(PictureOptions):
    type: Literal["input_image"]
    image_url: MediaSource


class InputFile(VideoOptions):
    """A picture, a video or a sound, with the options of its kind."""

    type: Literal["input_file"]
    file_data: str | None = Field(None, description="A `data:` URL, or base64 with a `filename`.")
    file_url: str | None = Field(None, description="An address; needed, unless `file_data` stands there.")
    filename: str | None = Field(None, description="Its ending says what the file is, where nothing else does.")


ItemContent = str | Annotated[
    list[InputText | RefusalPart | InputPicture | InputFile | InputSoundPart | VideoPart], Field(min_length=1)
]  # fmt: skip


class InputMessage(BaseModel):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent


class InputCall(BaseModel):
    """A call of an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: Annotated[str, Field(pattern=r"\S")]
    arguments: str = Field(description="A JSON object, or what came of one.")


class InputResult(BaseModel):
    """What a call came to."""

    type: Literal["function_call_output"]
    call_id: str
    output: ItemContent


class InputThought(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class InputReasoning(BaseModel):
    """Thoughts of an earlier answer, in front of its words and calls."""

    type: Literal["reasoning"]
    content: list[InputThought] | None = Field(None, description="Without it the item changes nothing.")


class OfferedFunction(FunctionOffered):
    type: Literal["function"]


class WantedFunction(FunctionWanted):
    type: Literal["function"]


class AllowedFunctions(BaseModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[WantedFunction], Field(min_length=1, max_length=MOST_TOOLS)]


class PlainFormat(BaseModel):
    type: Literal["text", "json_object"]


class SchemaFormat(NamedSchema):
    type: Literal["json_schema"]


class FormattedText(TextField):
    format: PlainFormat | SchemaFormat | None = Field(None, description="The form of the answer.")


class CreateResponse(RenderingFields, ResponsesBody, SamplingRequest):
    """OpenAI's request for a response. Other fields are ignored, but for some that would change the answer."""

    input: str | Annotated[list[InputMessage | InputCall | InputResult | InputReasoning], Field(min_length=1)] = Field(
        description="A text or the items of the whole conversation."
    )
    tools: Annotated[list[OfferedFunction], Field(max_length=MOST_TOOLS)] | None = Field(
        None, description="Functions that the answer may call."
    )
    tool_choice: Literal["auto", "none", "required"] | WantedFunction | AllowedFunctions | None = Field(
        None, description="Whether it calls, and which; `auto` unless given."
    )
    parallel_tool_calls: bool | None = Field(None, description="If false, one call at most.")
    text: FormattedText | None = Field(None, description="The form of the answer.")
    structured_outputs: StructuredOutputs | None = Field(None, description="The form of the answer, as vLLM has it.")
    max_tokens: None = Field(None, description="Not taken here: the name is `max_output_tokens`.")
    n: Literal[1] | None = Field(None, description="A response has one answer.")  # type: ignore[assignment]
    logprobs: Literal[False] | None = Field(  # type: ignore[assignment]
        None, description="Not taken here: `include` asks for them."
    )

    @model_validator(mode="after")
    def go_together(self) -> "CreateResponse":
        """Those of the base are looked at by other names; the document has no rule of two fields."""
        return self


_seen = [{"type": "input_image", "image_url": PICTURE}, {"type": "input_text", "text": "What is in this picture?"}]
_tool = {"type": "function", **WEATHER["function"]}
_colour = {"format": {"type": "json_schema", "name": "colour", "schema": COLOUR}}
_call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Paris"}'}
ROUTES = (
    DescribedRoute(
        path="/v1/responses", methods=("POST",), tag="chats", summary="One chat, OpenAI's Responses",
        told="Plain and streamed, without a store: the whole conversation stands in `input`. An error in a stream is "
        "the events `error` and `response.failed`.",
        body=CreateResponse, answer=ResponseAnswer, events=ResponsesEvent, done=False, errors_in_stream=False,
        timed=True, may_miss=True,
        examples={
            "a text": {"input": "Hello", "max_output_tokens": 8, "temperature": 0, "store": False},
            "a picture, as a stream": {
                "input": [{"role": "user", "content": _seen}], "instructions": "Be brief.", "max_output_tokens": 8,
                "stream": True,
            },
            "an answer in a form": {"input": "Which colour is it?", "text": _colour, "max_output_tokens": 32},
            "the result of a call": {
                "input": [
                    {"role": "user", "content": "What is the weather in Paris?"}, _call,
                    {"type": "function_call_output", "call_id": "call_1", "output": "Rain"},
                ],
                "tools": [_tool], "tool_choice": "auto", "max_output_tokens": 8,
            },
            "a call, as a stream": {
                "input": "What is the weather in Paris?", "tools": [_tool], "tool_choice": "required",
                "max_output_tokens": 64, "stream": True,
            },
            "log-probabilities": {
                "input": "Hello", "include": ["message.output_text.logprobs"], "top_logprobs": 2,
                "max_output_tokens": 4,
            },
        },
    ),
)  # fmt: skip
