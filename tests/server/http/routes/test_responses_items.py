"""The items of POST /v1/responses: the messages that the chat route reads, word for word."""

from typing import Any

from tests.server.http.request_bodies import openai, read_openai
from tests.server.http.routes.test_responses_body import CALL, PNG, SAID, USER, read
from tokenization.chat.parts import Chat, Media, Text

SIGNED = "https://a.example/b.png?c=" + "d" * 400


def chat_of(**fields: Any) -> Chat:
    chat = read(**fields).chat
    assert isinstance(chat, Chat)
    return chat


def same(items: list[Any], messages: list[Any], **beside: Any) -> None:
    """Both routes read the same chat, but for the names of fields."""
    ours, theirs = chat_of(input=items, **beside), read_openai(openai(messages=messages, **beside)).chat
    assert isinstance(theirs, Chat)
    assert [plain(turn) for turn in ours.turns] == [plain(turn) for turn in theirs.turns]


def plain(turn: Any) -> Any:
    parts = [(part.kind, part.source, part.options) if isinstance(part, Media) else part for part in turn.parts]
    calls = [(call.id, call.name, call.arguments) for call in turn.tool_calls]
    return turn.role, turn.plain, parts, calls, turn.tool_call_id


def test_a_text_is_one_message_of_a_user() -> None:
    assert chat_of() == chat_of(input=[USER]) == read_openai(openai()).chat


def test_instructions_stand_first() -> None:
    turns = chat_of(instructions="Be brief.", input=[{"role": "developer", "content": "In French."}, USER]).turns
    assert [turn.role for turn in turns] == ["system", "system", "user"]
    assert [part.text for part in turns[0].parts if isinstance(part, Text)] == ["Be brief."]


def test_media_are_those_of_the_chat_route() -> None:
    wav = {"data": "AAAA", "format": "wav"}
    same(
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look"},
                    {"type": "input_image", "image_url": PNG, "detail": "low"},
                    {"type": "input_image", "image_url": PNG, "detail": "original", "max_pixels": 3136},
                    {"type": "input_audio", "input_audio": wav},
                    {"type": "input_file", "file_data": "data:video/mp4;base64,AAAA", "filename": "a", "fps": 2.0},
                    {"type": "input_file", "file_data": "DATA:Video/mp4;base64,AAAA"},
                    {"type": "input_file", "file_data": "AAAA", "filename": "a.MP3"},
                    {"type": "input_file", "file_url": SIGNED, "filename": "b"},
                    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
                ],
            }
        ],
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": PNG, "max_pixels": 3136}},
                    {"type": "input_audio", "input_audio": wav},
                    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA", "fps": 2.0}},
                    {"type": "video_url", "video_url": {"url": "DATA:Video/mp4;base64,AAAA"}},
                    {"type": "audio_url", "audio_url": {"url": "data:audio/mp3;base64,AAAA"}},
                    {"type": "image_url", "image_url": {"url": SIGNED}},
                    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
                ],
            }
        ],
    )


def test_an_answer_with_calls_is_one_turn_and_outputs_are_tools() -> None:
    """Items as an earlier answer gave them, ids and all; thoughts are left out."""
    words = {"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}
    rest = {**CALL, "id": "fc_2", "call_id": "call_2"}
    function = {"name": "weather", "arguments": CALL["arguments"]}
    seen = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PNG}]
    same(
        [
            USER,
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {**SAID, "content": [words]},
            CALL,
            rest,
            {"type": "function_call_output", "call_id": "call_1", "output": "dry"},
            {"type": "function_call_output", "call_id": "call_2", "output": seen},
            CALL,
        ],
        [
            USER,
            {
                "role": "assistant",
                "content": "Let me look.",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": function},
                    {"id": "call_2", "type": "function", "function": function},
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "dry"},
            {
                "role": "tool",
                "tool_call_id": "call_2",
                "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": PNG}}],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
            },
        ],
    )
