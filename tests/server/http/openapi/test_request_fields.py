"""What readers by hand take of parts, media, tools and forms is what the types of the document hold."""

from pydantic import BaseModel

from server.http.openapi import request_fields as told
from server.http.routes.structured import ANSWER_KINDS, FORMS
from tokenization.chat import dialects, rendering
from tokenization.chat.options import KEYS
from tokenization.chat.template_variables import VARIABLES
from tokenization.chat.tool_offer import FIELDS


def names(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def values(model: type[BaseModel], field: str) -> set[object]:
    """Of a field that is one of a few words."""
    schema = model.model_json_schema()["properties"][field]
    return set(schema.get("enum") or [schema["const"]])


def test_options_of_media() -> None:
    assert names(told.PictureOptions) == {*KEYS["image"]} and names(told.VideoOptions) == {*KEYS["video"]}
    assert names(told.MediaOfAll) == {*rendering._OPTIONS, "size"}
    assert names(told.Edges) == rendering._EDGES.keys()


def test_parts_and_roles() -> None:
    kinds: tuple[type[BaseModel], ...] = (
        told.TextPart, told.RefusalPart, told.PicturePart, told.VideoPart, told.SoundPart, told.InputSoundPart
    )  # fmt: skip
    types = {kind for part in kinds for kind in values(part, "type")}
    assert types == {"text", "refusal", "input_audio", *dialects._URL_TYPES}
    assert values(told.ChatMessage, "role") == dialects._ROLES.keys()
    assert values(told.SoundData, "format") == {*dialects._SOUNDS}
    native = (told.NativeText, told.NativePicture, told.NativeVideo, told.NativeSound, told.NativeBoxes)
    assert {names(one).intersection(dialects._CONTENT).pop() for one in native} == {*dialects._CONTENT}


def test_forms_tools_and_rendering() -> None:
    assert names(told.FormFields) == FORMS and names(told.ToolFields) == {*FIELDS}
    assert values(told.ResponseFormat, "type") == {*ANSWER_KINDS}
    fields = {rendering.GENERATION, rendering.CONTINUE, rendering.MEDIA, VARIABLES}
    assert names(told.RenderingFields) == fields
