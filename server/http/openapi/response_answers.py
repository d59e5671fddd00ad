"""What POST /v1/responses answers, as types: a response whole, and the events of its stream."""

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from server.http.openapi.answers import AnswerPart, Missing, PromptDetails, SampledToken, UsageNotes


class OutputText(AnswerPart):
    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)]
    logprobs: list[SampledToken]


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputMessage(AnswerPart):
    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ThoughtText(AnswerPart):
    type: Literal["reasoning_text"]
    text: str


class OutputThought(AnswerPart):
    """The thoughts before the words, of a model that thinks aloud."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: Annotated[list[Any], Field(max_length=0)]
    content: list[ThoughtText]


class OutputCall(AnswerPart):
    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str = Field(description="JSON.")


OutputItem = Annotated[OutputMessage | OutputThought | OutputCall, Field(discriminator="type")]


class ResponseInputDetails(PromptDetails):
    cache_write_tokens: Literal[0]


class ResponseOutputDetails(AnswerPart):
    reasoning_tokens: int = Field(description="Of thoughts, without the mark that ends them.")


class ResponseUsage(UsageNotes):
    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ResponseFailure(AnswerPart):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteReason(AnswerPart):
    reason: Literal["max_output_tokens"]


class NoEffort(AnswerPart):
    effort: None
    summary: None


class ResponseAnswer(AnswerPart):
    """What was asked stands there again, with OpenAI's values for what was left out."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Seconds since 1970.")
    completed_at: int | Missing = None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseFailure | None
    incomplete_details: IncompleteReason | None
    output: list[OutputItem]
    usage: ResponseUsage | None
    model: str
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    prompt_cache_key: str | None
    safety_identifier: str | None
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    user: str | None
    background: Literal[False]
    previous_response_id: None
    reasoning: NoEffort
    service_tier: Literal["default"]
    store: Literal[False]
    truncation: Literal["disabled"]


class NumberedEvent(AnswerPart):
    sequence_number: int = Field(description="Of the events of a stream, from 0 on.")


class ResponseEvent(NumberedEvent):
    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponseAnswer


class ItemEvent(NumberedEvent):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class InsideEvent(NumberedEvent):
    item_id: str
    output_index: int


class PartEvent(InsideEvent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: Literal[0]
    part: Annotated[OutputText | ThoughtText, Field(discriminator="type")]


class TextDeltaEvent(InsideEvent):
    type: Literal["response.output_text.delta"]
    content_index: Literal[0]
    delta: str
    logprobs: list[SampledToken]


class TextDoneEvent(InsideEvent):
    type: Literal["response.output_text.done"]
    content_index: Literal[0]
    text: str
    logprobs: list[SampledToken]


class ThoughtDeltaEvent(InsideEvent):
    type: Literal["response.reasoning_text.delta"]
    content_index: Literal[0]
    delta: str


class ThoughtDoneEvent(InsideEvent):
    type: Literal["response.reasoning_text.done"]
    content_index: Literal[0]
    text: str


class ArgumentsDeltaEvent(InsideEvent):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDoneEvent(InsideEvent):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class FailedEvent(NumberedEvent):
    type: Literal["error"]
    code: str
    message: str
    param: str | None
    error: dict[str, Any] = Field(description="As every route tells an error.")


class ResponsesEvent(RootModel[
    Annotated[
        ResponseEvent | ItemEvent | PartEvent | TextDeltaEvent | TextDoneEvent | ThoughtDeltaEvent
        | ThoughtDoneEvent | ArgumentsDeltaEvent | ArgumentsDoneEvent | FailedEvent,
        Field(discriminator="type"),
    ]
]):  # fmt: skip
    """An event of a stream, which has its type as its name, too."""
