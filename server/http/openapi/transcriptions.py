"""The route of transcripts, as the document tells it: POST /v1/audio/transcriptions, a form with a sound."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, RootModel

from server.http.openapi.answers import AnswerPart, Missing
from server.http.openapi.described import DescribedRoute
from server.http.routes.transcriptions import MOST_TEXT

FieldText = Annotated[str, Field(max_length=MOST_TEXT)]
# A WAV of 832 equal samples of 8 bits: every byte of it is a character of ASCII.
SOUND = (
    "RIFFd\x03\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00@\x1f\x00\x00@\x1f\x00\x00\x01\x00\x08\x00"
    "data@\x03\x00\x00" + "@" * 832
)


class CreateTranscription(BaseModel):
    """OpenAI's form. An empty field says nothing; others are ignored, but for some that would change the words."""

    file: Annotated[str, Field(min_length=1, json_schema_extra={"format": "binary"})] = Field(
        description="The sound: a file, whose own header decides what it is."
    )
    model: FieldText | None = Field(None, description="The one that is served, if it is given.")
    prompt: FieldText | None = Field(None, description="What the model is asked, instead of its family's own words.")
    language: Annotated[str, Field(pattern=r"^([A-Za-z][A-Za-z -]{1,39})?$")] | None = Field(
        None, description="A code such as `en`, or a name."
    )
    temperature: Annotated[float, Field(ge=0)] | None = Field(None, description="0 unless given.")
    response_format: Literal["json", "text"] | None = Field(None, description="`text`: the words alone.")
    stream: bool | None = Field(None, description="The answer is server-sent events.")
    cache_salt: FieldText | None = Field(
        None, description="What is kept of the request's sound and prompt is shared with the same salt alone."
    )


class HeardDetails(AnswerPart):
    audio_tokens: int
    text_tokens: int


class TranscriptUsage(AnswerPart):
    type: Literal["tokens"]
    input_tokens: int
    input_token_details: HeardDetails
    output_tokens: int
    total_tokens: int
    timings: dict[str, float] | Missing = Field(
        None, description="Seconds of the request's stages, where `X-Pixelferry-Timings` asks for them."
    )


class Transcript(AnswerPart):
    text: str
    usage: TranscriptUsage


class TranscriptDelta(AnswerPart):
    type: Literal["transcript.text.delta"]
    delta: str


class TranscriptDone(Transcript):
    """All of the words again."""

    type: Literal["transcript.text.done"]


class TranscriptEvent(RootModel[Annotated[TranscriptDelta | TranscriptDone, Field(discriminator="type")]]):
    """An event of a stream, which has its type as its name, too."""


ROUTES = (
    DescribedRoute(
        path="/v1/audio/transcriptions", methods=("POST",), tag="chats", summary="The words of a sound",
        told="OpenAI's, of models that hear.",
        body=CreateTranscription, takes="multipart/form-data", answer=Transcript, events=TranscriptEvent,
        media_type="text/plain", timed=True, may_miss=True,
        examples={
            "a sound": {"file": SOUND, "language": "en"},
            "a sound, as a stream": {"file": SOUND, "prompt": "What is said?", "stream": True},
        },
    ),
)  # fmt: skip
