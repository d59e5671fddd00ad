"""What stands in bodies that a reader of ours takes apart by hand, as types: messages, parts, media, tools, forms."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.http.routes.structured import MOST_CHARACTERS
from server.http.routes.vllm_fields import LONGEST_LABEL, LONGEST_NAME, MOST_LABELS
from tokenization.chat.boxes import FULL
from tokenization.chat.options import MOST_TILES
from tokenization.chat.tool_offer import MOST_TOOLS

POSITIVE = Field(gt=0, lt=2**53)
SOURCE = "A `data:` URL, or a path below a root that the server allows (`--allow-media-root`)."
MediaSource = Annotated[str, Field(min_length=1, description=SOURCE)]
Frames = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, description="Pictures, as frames.")]
PixelCount = Annotated[int, POSITIVE] | None
TileCount = Annotated[
    Annotated[int, Field(gt=0, le=MOST_TILES)] | None,
    Field(
        description="The checkpoint's unless given: tiles of a picture at most, without the one that shows all of it; "
        "of models that cut pictures into tiles."
    ),
]
Coordinate = Annotated[float, Field(ge=0, le=FULL)]


class Closed(BaseModel):
    """Other keys are a 400."""

    model_config = ConfigDict(extra="forbid")


class PictureOptions(BaseModel):
    """How large a picture is seen."""

    min_pixels: PixelCount = Field(None, description="The checkpoint's unless given: pixels after resizing, at least.")
    max_pixels: PixelCount = Field(None, description="The checkpoint's unless given: pixels after resizing, at most.")
    detail: Literal["auto", "low", "high", "original"] | None = Field(
        None, description="`low` is `max_pixels` of 262,144 (512 x 512) where that is less; the others change nothing.",
    )  # fmt: skip
    max_dynamic_patch: TileCount = None


class VideoOptions(BaseModel):
    """How many frames of a video are seen, how large, and whether it is heard."""

    fps: Annotated[float, Field(ge=1e-4, lt=2**53)] | None = Field(
        None, description="The checkpoint's, else 2: frames looked at in each second, of a file at most 30; of a list "
        "of pictures: the rate they were taken at.",
    )  # fmt: skip
    num_frames: Annotated[int, POSITIVE] | None = Field(
        None, description="Frames looked at, instead of `fps`; all where there are fewer."
    )
    min_pixels: PixelCount = Field(
        None, description="The checkpoint's, else 100,352: pixels of a frame after resizing, at least."
    )
    max_pixels: PixelCount = Field(
        None, description="The checkpoint's, else 602,112, which is the most of a frame whatever is asked, unless the "
        "checkpoint says more: pixels of a frame after resizing, at most its share of the video's total.",
    )  # fmt: skip
    total_pixels: PixelCount = Field(
        None, description="90,316,800 unless given: pixels of all pairs of frames together (frames / 2 x height x "
        "width) after resizing, as in the published utilities; named, it is kept, whatever else is in the prompt.",
    )  # fmt: skip
    use_audio_in_video: bool | None = Field(
        None, description="The sound of the video is heard, too; false unless given."
    )


# ---- POST /chat


class NativeText(Closed):
    text: str


class NativePicture(PictureOptions, Closed):
    image: MediaSource


class NativeVideo(VideoOptions, Closed):
    video: MediaSource | Frames


class NativeSound(Closed):
    audio: MediaSource


class NativeBoxes(Closed):
    """A user points at the latest picture, in numbers from 0 to 1000."""

    box: Annotated[
        list[Annotated[list[Coordinate], Field(min_length=4, max_length=4)]],
        Field(min_length=1, description="Boxes: [x1, y1, x2, y2] each."),
    ]
    ref: str | None = Field(None, description="Words for what is in them.")


NativePart = NativeText | NativePicture | NativeVideo | NativeSound | NativeBoxes
NativeInputs = Annotated[list[NativePart], Field(min_length=1, description="Parts of a user's turn, in any order.")]


# ---- messages of OpenAI's form


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class RefusalPart(BaseModel):
    type: Literal["refusal"]
    refusal: str = Field(description="Read as a text.")


class PictureAddress(PictureOptions):
    url: MediaSource


class VideoAddress(VideoOptions):
    url: MediaSource | Frames


class SoundAddress(BaseModel):
    url: MediaSource


class PicturePart(BaseModel):
    type: Literal["image_url"]
    image_url: MediaSource | PictureAddress


class VideoPart(BaseModel):
    type: Literal["video_url"]
    video_url: MediaSource | Frames | VideoAddress


class SoundPart(BaseModel):
    type: Literal["audio_url"]
    audio_url: MediaSource | SoundAddress


class SoundData(BaseModel):
    data: Annotated[str, Field(min_length=1, description="Base64.")]
    format: Literal["wav", "mp3", "flac", "ogg", "opus", "m4a", "aac", "webm"] = Field(
        description="The file's own header decides what it is."
    )


class InputSoundPart(BaseModel):
    type: Literal["input_audio"]
    input_audio: SoundData


MessagePart = TextPart | RefusalPart | PicturePart | VideoPart | SoundPart | InputSoundPart


class CalledFunction(BaseModel):
    name: Annotated[str, Field(pattern=r"\S")]
    arguments: str | dict[str, Any] = Field(description="A JSON object, or any string, which should hold one.")


class EarlierCall(BaseModel):
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class ChatMessage(BaseModel):
    """One message. Fields that are not named here are ignored, but for some that would change the prompt."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[MessagePart], Field(min_length=1)] | None = Field(
        None, description="A text or a list of parts; null in an assistant's or a tool's message alone."
    )
    name: str | None = None
    tool_calls: list[EarlierCall] | None = Field(None, description="An assistant's, of an earlier answer.")
    tool_call_id: str | None = Field(None, description="A tool's: the call that it answers.")
    reasoning: str | None = Field(None, description="An assistant's: the thoughts before its words.")
    reasoning_content: str | None = Field(None, description="The same, where `reasoning` is not given.")


# ---- tools and forms, on all routes of chats


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class FunctionOffered(BaseModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of type `object`.")
    strict: bool | None = None


class ToolOffered(BaseModel):
    type: Literal["function"]
    function: FunctionOffered


class FunctionWanted(BaseModel):
    name: FunctionName


class ToolWanted(BaseModel):
    type: Literal["function"]
    function: FunctionWanted


class ToolsAllowed(BaseModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolWanted], Field(min_length=1, max_length=MOST_TOOLS)]


class ToolsAllowedChoice(BaseModel):
    type: Literal["allowed_tools"]
    allowed_tools: ToolsAllowed


class ToolFields(BaseModel):
    tools: Annotated[list[ToolOffered], Field(max_length=MOST_TOOLS)] | None = Field(
        None, description="Functions that the answer may call."
    )
    tool_choice: Literal["auto", "none", "required"] | ToolWanted | ToolsAllowedChoice | None = Field(
        None, description="Whether it calls, and which; `auto` unless given."
    )
    parallel_tool_calls: bool | None = Field(None, description="If false, one call at most.")


class NamedSchema(Closed):
    name: Annotated[str, Field(min_length=1)]
    schema_: dict[str, Any] = Field(alias="schema", description="A JSON schema that the answer is held to.")
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Closed):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = Field(None, description="With the type `json_schema`.")


GrammarText = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]


class StructuredOutputs(Closed):
    """Exactly one form, and what vLLM has beside it."""

    json_: str | dict[str, Any] | None = Field(None, alias="json", description="A JSON schema.")
    regex: Annotated[str, Field(max_length=MOST_CHARACTERS)] | None = Field(None, description="A regular expression.")
    choice: Annotated[list[str], Field(min_length=1)] | None = Field(None, description="One of these texts.")
    grammar: GrammarText | None = Field(None, description="A grammar in EBNF or Lark.")
    json_object: Literal[True] | None = Field(None, description="Any JSON object.")
    disable_any_whitespace: bool | None = Field(None, description="Changes nothing.")
    disable_additional_properties: Literal[False] | None = Field(None, description="Changes nothing.")


class FormFields(BaseModel):
    response_format: ResponseFormat | None = Field(None, description="The form of the answer, as OpenAI has it.")
    structured_outputs: StructuredOutputs | None = Field(None, description="The form of the answer, as vLLM has it.")


# ---- the client's own


class LabelFields(BaseModel):
    metadata: Any = Field(
        None, description=f"Changes nothing. At most {MOST_LABELS} entries, names of {LONGEST_NAME} characters and "
        f"values of {LONGEST_LABEL}.",
    )  # fmt: skip


# ---- how a chat becomes a prompt


class Edges(Closed):
    shortest_edge: PixelCount = Field(None, description="`min_pixels`.")
    longest_edge: PixelCount = Field(None, description="`max_pixels`.")


class MediaOfAll(VideoOptions, Closed):
    """Options of all pictures and videos of the chat that do not say their own."""

    max_dynamic_patch: TileCount = None
    size: Edges | None = Field(None, description="The two bounds of pixels, by other names.")


class RenderingFields(BaseModel):
    add_generation_prompt: bool | None = Field(
        None, description="True, unless an answer is continued. If false, the prompt ends behind the last message, "
        "without the opening of an answer.",
    )  # fmt: skip
    continue_final_message: bool | None = Field(
        None, description="The last message must be an assistant's with a text. The prompt ends inside it, and the "
        "answer continues it; `content` holds only what is new.",
    )  # fmt: skip
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables that the model's chat template reads."
    )
    mm_processor_kwargs: MediaOfAll | None = Field(
        None, description="Options of all pictures and videos of the chat that do not say their own."
    )
