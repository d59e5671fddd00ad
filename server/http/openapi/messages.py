"""The routes of Anthropic's messages, as the document tells them: POST /v1/messages and /v1/messages/count_tokens."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel

from server.http.openapi.answers import AnswerPart, UsageNotes
from server.http.openapi.chats import PICTURE, WEATHER
from server.http.openapi.described import DescribedRoute
from server.http.openapi.failures import ANTHROPIC_ERRORS
from server.http.openapi.request_fields import FunctionName, MediaSource
from server.http.routes.messages import CountedBody, MessagesBody
from server.requests.sampling import INT32_MAX
from tokenization.chat.tool_offer import MOST_TOOLS

# ---- what is asked


class TextBlock(BaseModel):
    type: Literal["text"]
    text: str


class DataSource(BaseModel):
    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Annotated[str, Field(min_length=1, description="Base64.")]


class AddressSource(BaseModel):
    type: Literal["url"]
    url: MediaSource


class PictureBlock(BaseModel):
    type: Literal["image"]
    source: DataSource | AddressSource


class ResultBlock(BaseModel):
    """What a call came to."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock | PictureBlock] | None = None
    is_error: bool | None = Field(None, description="Changes nothing.")


class ThinkingBlock(BaseModel):
    """Thoughts of an earlier answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(None, description="Changes nothing.")


class CallBlock(BaseModel):
    """A call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: Annotated[str, Field(pattern=r"\S")]
    input: dict[str, Any]


SystemText = str | Annotated[list[TextBlock], Field(min_length=1)]


class UserMessage(BaseModel):
    role: Literal["user"]
    content: str | Annotated[list[TextBlock | PictureBlock | ResultBlock], Field(min_length=1)]


class EarlierAnswer(BaseModel):
    role: Literal["assistant"]
    content: str | Annotated[list[TextBlock | ThinkingBlock | CallBlock], Field(min_length=1)]


class SystemMessage(BaseModel):
    role: Literal["system"]
    content: SystemText


class CustomTool(BaseModel):
    name: FunctionName
    input_schema: dict[str, Any] = Field(description="A JSON schema of type `object`.")
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None


class CustomToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = Field(None, description="With the type `tool`.")
    disable_parallel_tool_use: bool | None = Field(None, description="If true, one call at most.")


class OutputConfig(BaseModel):
    """Nothing of it is read."""

    format: None = Field(None, description="Not taken here: other routes hold an answer to a form.")


class PromptFields(BaseModel):
    messages: Annotated[list[UserMessage | EarlierAnswer | SystemMessage], Field(min_length=1)]
    system: SystemText | None = Field(None, description="The system message; texts of a list are joined by lines.")
    tools: Annotated[list[CustomTool], Field(max_length=MOST_TOOLS)] | None = Field(
        None, description="Tools of the client's that the answer may call."
    )
    tool_choice: CustomToolChoice | None = Field(None, description="Whether it calls, and which.")
    output_config: OutputConfig | None = Field(None, description="Changes nothing.")


class CreateMessage(PromptFields, MessagesBody):
    """Anthropic's request for a message. Other fields are ignored, but for some that would change the answer."""

    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] = Field(description="At most, of the answer.")
    temperature: Annotated[float, Field(ge=0)] | None = Field(None, description="The checkpoint's unless given.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="The checkpoint's, else 1.")
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = Field(
        None, description="The checkpoint's, else off. 0 and -1 are off."
    )


class CountMessageTokens(PromptFields, CountedBody):
    """The same body of which the tokens are counted."""


# ---- what is answered


class TextAnswerBlock(AnswerPart):
    type: Literal["text"]
    text: str


class ThinkingAnswerBlock(AnswerPart):
    type: Literal["thinking"]
    thinking: str
    signature: str = Field(description="The request's id: nothing is signed.")


class CallAnswerBlock(AnswerPart):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Any = Field(description="An object; of a stream an empty one.")


AnswerBlock = Annotated[TextAnswerBlock | ThinkingAnswerBlock | CallAnswerBlock, Field(discriminator="type")]
StopReason = Literal["end_turn", "max_tokens", "tool_use", "stop_sequence"]


class MessageUsage(UsageNotes):
    """`input_tokens` and what was read from a cache are the prompt together."""

    input_tokens: int
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    output_tokens: int


class MessageEnd(AnswerPart):
    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageAnswer(MessageEnd):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    usage: MessageUsage


class MessageTokens(AnswerPart):
    input_tokens: int


class MessageStart(AnswerPart):
    type: Literal["message_start"]
    message: MessageAnswer


class BareEvent(AnswerPart):
    type: Literal["ping", "message_stop"]


class BlockStart(AnswerPart):
    type: Literal["content_block_start"]
    index: int
    content_block: AnswerBlock


class TextDelta(AnswerPart):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(AnswerPart):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(AnswerPart):
    type: Literal["signature_delta"]
    signature: str


class ArgumentsDelta(AnswerPart):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(AnswerPart):
    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | ArgumentsDelta


class BlockStop(AnswerPart):
    type: Literal["content_block_stop"]
    index: int


class MessageDeltaEvent(AnswerPart):
    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageEvent(RootModel[
    Annotated[
        MessageStart | BareEvent | BlockStart | BlockDelta | BlockStop | MessageDeltaEvent,
        Field(discriminator="type"),
    ]
]):  # fmt: skip
    """An event of a stream, which has its type as its name, too."""


_function = WEATHER["function"]
_tool = {
    "name": _function["name"], "description": _function["description"], "input_schema": _function["parameters"]
}  # fmt: skip
_picture = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PICTURE.partition(",")[2]},
}
_hello = {"role": "user", "content": "Hello"}
_asked = {"role": "user", "content": [_picture, {"type": "text", "text": "What is in this picture?"}]}
_called = [
    {"role": "user", "content": "What is the weather in Paris?"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain"}]},
]
ROUTES = (
    DescribedRoute(
        path="/v1/messages", methods=("POST",), tag="chats", summary="One chat, Anthropic's form",
        told="Plain and streamed, for Anthropic's SDK. An error in a stream is an event `error`.",
        body=CreateMessage, answer=MessageAnswer, events=MessageEvent, done=False, timed=True, may_miss=True,
        errors=ANTHROPIC_ERRORS,
        examples={
            "a text": {"max_tokens": 8, "temperature": 0, "system": "Be brief.", "messages": [_hello]},
            "a picture, as a stream": {"max_tokens": 8, "messages": [_asked], "stream": True},
            "the result of a call": {"max_tokens": 8, "messages": _called, "tools": [_tool]},
            "a call, as a stream": {
                "max_tokens": 64, "messages": _called[:1], "tools": [_tool], "tool_choice": {"type": "any"},
                "stream": True,
            },
        },
    ),
    DescribedRoute(
        path="/v1/messages/count_tokens", methods=("POST",), tag="texts", summary="How many tokens a message has",
        told="The body of `/v1/messages`; `max_tokens` and the parameters of sampling are not needed.",
        body=CountMessageTokens, answer=MessageTokens, may_miss=True, errors=ANTHROPIC_ERRORS,
        examples={"a picture": {"messages": [_asked], "tools": [_tool]}},
    ),
)  # fmt: skip
