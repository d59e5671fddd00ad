"""What routes answer, as types: the document shows them, and a client is held to them; nothing is checked by them here.

A field that may be missing is `| Missing`. It is never null unless it says so.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from server.requests.answer import FinishReason

Missing = SkipJsonSchema[None]


def without_defaults(schema: dict[str, Any]) -> None:
    """What may be missing has none."""
    for one in schema.get("properties", {}).values():
        one.pop("default", None)


class AnswerPart(BaseModel):
    """It has these fields and no others."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=without_defaults)


# ---- counts


class Shrunk(AnswerPart):
    limit: str = Field(description="The setting that decided.")
    width: int = Field(description="In pixels, as it is seen.")
    height: int
    wanted_width: int = Field(description="What request and checkpoint alone ask for.")
    wanted_height: int


class ShrunkMedium(Shrunk):
    index: int = Field(description="The medium's place in `media` of POST /tokenize.")
    param: str = Field(description="Its field.")
    kind: Literal["image", "video", "audio"]


class PromptDetails(AnswerPart):
    cached_tokens: int = Field(description="At the prompt's beginning, not computed again.")
    image_tokens: int | Missing = None
    video_tokens: int | Missing = None
    audio_tokens: int | Missing = None


class UsageNotes(AnswerPart):
    """What stands beside the counts, whatever a route calls these."""

    reduced_media: list[ShrunkMedium] | Missing = Field(None, description="What a bound of the server made smaller.")
    timings: dict[str, float] | Missing = Field(
        None, description="Seconds of the request's stages, where `X-Pixelferry-Timings` asks for them."
    )


class CompletionDetails(AnswerPart):
    reasoning_tokens: int = Field(description="Of thoughts, without the marks that end them.")


class UsageCounts(UsageNotes):
    """Tokens of prompt and answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | Missing = Field(None, description="Where the model thinks aloud.")


# ---- log-probabilities and calls


class LikelyToken(AnswerPart):
    token: str = Field(description="As text; U+FFFD for bytes that are not a whole character.")
    logprob: float | None
    bytes: list[int] = Field(description="The token's own, exactly.")


class SampledToken(LikelyToken):
    top_logprobs: list[LikelyToken]


class NativeLogprobs(AnswerPart):
    content: list[SampledToken]


class ChatLogprobs(NativeLogprobs):
    refusal: None


class CallArguments(AnswerPart):
    arguments: str = Field(description="JSON; of a stream a piece of it.")
    name: str | Missing = None


class ToolCallAnswer(AnswerPart):
    """A call; of a stream only its first piece names it."""

    id: str | Missing = None
    type: Literal["function"] | Missing = None
    function: CallArguments
    index: int | Missing = Field(None, description="In streams, and on POST /chat.")


# ---- POST /chat


class FoundRegion(AnswerPart):
    ref: str | None = Field(description="The words before it.")
    kind: Literal["box", "quad"]
    points: list[Annotated[list[int], Field(min_length=2, max_length=2)]] = Field(description="In pixels.")
    picture: int = Field(description="Its index among the pictures of the conversation.")


class NativePiece(AnswerPart):
    """One answer, or what an event adds to it."""

    text: str | Missing = None
    reasoning: str | Missing = Field(None, description="The thoughts before the text, of a model that thinks aloud.")
    finish_reason: FinishReason | None = None
    tool_calls: list[ToolCallAnswer] | Missing = None
    logprobs: NativeLogprobs | Missing = None
    boxes: list[FoundRegion] | Missing = Field(None, description="Where the model points at pictures.")
    drawn: str | None = Field(None, description="The picture with boxes, a `data:` URL.")
    notes: list[str] | Missing = None


class SeenMedium(AnswerPart):
    kind: Literal["image", "video", "audio"]
    tokens: int
    width: int | Missing = Field(None, description="In pixels, as the model sees it, or each frame of it.")
    height: int | Missing = None


class NativeIndexed(NativePiece):
    index: int


class NativeAnswer(NativePiece):
    """With `n` above 1 `answers` stands in the place of all that belongs to one answer."""

    id: str
    usage: UsageCounts
    media: list[SeenMedium] | Missing = Field(None, description="What each medium of the chat became, in their order.")
    answers: list[NativeIndexed] | Missing = None


class NativeEvent(NativePiece):
    id: str
    index: int | Missing = Field(None, description="Of the answer, with `n` above 1.")
    usage: UsageCounts | Missing = Field(None, description="In the last event.")
    media: list[SeenMedium] | Missing = Field(None, description="In the last event.")


# ---- OpenAI's forms


class AssistantMessage(AnswerPart):
    role: Literal["assistant"]
    content: str | None
    reasoning: str | Missing = Field(None, description="The thoughts before it, of a model that thinks aloud.")
    refusal: None
    tool_calls: list[ToolCallAnswer] | Missing = None


class ChatChoice(AnswerPart):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | Missing = Field(None, description="With `return_token_ids`.")


class ModelAnswer(AnswerPart):
    id: str
    created: int = Field(description="Seconds since 1970.")
    model: str
    system_fingerprint: str = Field(description="The same as long as version, model and dtype are.")


class ChatCompletion(ModelAnswer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageCounts
    prompt_token_ids: list[int] | Missing = Field(None, description="With `return_token_ids`.")


class MessageDelta(AnswerPart):
    role: Literal["assistant"] | Missing = None
    content: str | Missing = None
    reasoning: str | Missing = None
    tool_calls: list[ToolCallAnswer] | Missing = None


class ChunkChoice(AnswerPart):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | Missing = None


class ChatCompletionChunk(ModelAnswer):
    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: UsageCounts | None = Field(None, description="With `stream_options`.")
    prompt_token_ids: list[int] | Missing = None


class TextLogprobs(AnswerPart):
    """Four lists with an entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(AnswerPart):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None
    token_ids: list[int] | Missing = Field(None, description="With `return_token_ids`.")
    prompt_token_ids: list[int] | Missing = Field(None, description="With `return_token_ids`.")


class TextCompletion(ModelAnswer):
    """A whole answer; a chunk of a stream has the same form."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: UsageCounts | None = None


# ---- ids and models


class CountedMedium(AnswerPart):
    kind: Literal["image", "video", "audio"]
    tokens: int
    reduced: Shrunk | Missing = Field(None, description="Where a bound of the server made it smaller.")


class CountedTokens(AnswerPart):
    ids: list[int]
    count: int
    media: list[CountedMedium]
    max_model_len: int
    tokens: list[int] = Field(description="`ids`, as vLLM calls them.")
    token_strs: list[str] | None = Field(description="With `return_token_strs`: each token as text.")


class DetokenizedText(AnswerPart):
    prompt: str


class ModelArchitecture(AnswerPart):
    family: str
    input_modalities: list[str]


class ServedModel(AnswerPart):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["pixelferry"]
    root: str = Field(description="The checkpoint's directory where that is shown, else `id`.")
    max_model_len: int = Field(description="Tokens of prompt and answer together.")
    architecture: ModelArchitecture


class ServedModels(AnswerPart):
    object: Literal["list"]
    data: list[ServedModel]
