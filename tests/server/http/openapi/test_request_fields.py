"""What readers by hand take of parts, media, tools, items and forms is what the types of the document hold."""

from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from server.http.openapi import request_fields as told
from server.http.openapi import responses
from server.http.openapi.chats import ChatCompletionRequest
from server.http.routes.responses_body import TOOL
from server.http.routes.responses_items import ROLES
from server.http.routes.structured import ANSWER_KINDS, FORMS
from tests.tables import each_of
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


def test_items_and_tools_of_responses() -> None:
    assert set(get_args(responses.InputMessage.model_fields["role"].annotation)) == {*ROLES}
    assert names(responses.OfferedFunction) == {"type", *TOOL}
    assert names(responses.InputPicture) == {"type", "image_url", *KEYS["image"]}
    assert names(responses.InputFile) >= {"file_data", "file_url", "filename", *KEYS["video"], *KEYS["audio"]}


CHAT, ASKED = {"messages": [{"role": "user", "content": "Hi"}]}, {"input": "Hi"}
WRONG_CHATS: list[dict[str, Any]] = [{"temperature": -1}, {"messages": []}, {"n": 0}, {"tool_choice": "maybe"}]
WRONG_RESPONSES: list[dict[str, Any]] = [{"max_tokens": 1}, {"n": 2}, {"logprobs": True}, {"top_logprobs": 21}]


@each_of("body", [*({**CHAT, **field} for field in WRONG_CHATS), *({**ASKED, **field} for field in WRONG_RESPONSES)])
def test_what_is_refused_does_not_fit(body: dict[str, Any]) -> None:
    form: type[BaseModel] = ChatCompletionRequest if "messages" in body else responses.CreateResponse
    form.model_validate(CHAT if "messages" in body else ASKED)
    with pytest.raises(ValidationError):
        form.model_validate(body)
