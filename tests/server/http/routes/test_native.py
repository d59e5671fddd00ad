"""POST /chat: what its body may hold, and its answer whole and as events."""

from typing import Any

import pytest
from msgspec.structs import replace

from server.http.responses import Serializer
from server.http.routes.native import NativeSerializer
from server.request_context import RequestContext
from server.requests.answer import Delta, Grounded
from server.requests.sampling import SamplingRequest
from tests.server.http.answers import ACCEPTED, DELTAS, SEVERAL, answered, collected, parse, parse_all
from tests.server.http.request_bodies import native, read_native, refusal
from tests.server.tables import each_of
from tokenization.chat.boxes import Box
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat
from tokenization.messages import Drawn
from tokenization.text.bpe import BPETokenizer

GROUNDED = Grounded(
    boxes=(Box(ref="a cat", kind="box", points=((1, 2), (3, 4)), picture=0),),
    drawn=Drawn(request_id="r", picture="data:image/png;base64,AA", notes=("small",)),
)
BESIDE: dict[str, Any] = {
    "boxes": [{"ref": "a cat", "kind": "box", "points": [[1, 2], [3, 4]], "picture": 0}],
    "drawn": "data:image/png;base64,AA",
    "notes": ["small"],
}


@each_of("logprobs", [False, True])
def test_native_events_join_to_the_answer(tokenizer: BPETokenizer, logprobs: bool) -> None:
    serializer: Serializer = NativeSerializer("chat-1", tokenizer, RequestContext(), logprobs=logprobs)
    whole = answered(serializer, ACCEPTED, collected(DELTAS))
    events = parse_all([*(serializer.event(ACCEPTED, delta) for delta in DELTAS), serializer.closing(ACCEPTED, 3)])
    assert events[0]["text"] == DELTAS[0].text, "nothing goes before the first text"
    assert "".join(event["text"] for event in events) == whole["text"]
    assert [event["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert events[-1]["usage"] == whole["usage"] and ("logprobs" in whole) == logprobs
    if logprobs:
        entries = [entry for event in events for entry in event.get("logprobs", {"content": []})["content"]]
        assert entries == whole["logprobs"]["content"] and len(entries) == 3


@each_of("logprobs", [False, True])
def test_several_answers_natively(tokenizer: BPETokenizer, logprobs: bool) -> None:
    serializer = NativeSerializer("chat-1", tokenizer, RequestContext(), logprobs=logprobs, n=2)
    whole = answered(serializer, ACCEPTED, collected(SEVERAL))
    assert "text" not in whole and whole["usage"]["completion_tokens"] == 4
    assert [(a["index"], a["text"], a["finish_reason"]) for a in whole["answers"]] == [
        (0, "ab", "length"),
        (1, "x", "stop"),
    ]
    assert all(("logprobs" in a) == logprobs for a in whole["answers"])
    events = [parse(serializer.event(ACCEPTED, delta)) for delta in SEVERAL]
    assert [(e["index"], e["text"], e["finish_reason"]) for e in events] == [
        (1, "x", None), (0, "a", None), (1, "", "stop"), (0, "b", "length"),
    ]  # fmt: skip
    last = parse(serializer.closing(ACCEPTED, 4))
    assert (last["text"], last["finish_reason"], last["usage"]) == ("", None, whole["usage"])


def grounded(deltas: list[Delta]) -> list[Delta]:
    """The same answers, each with boxes at its end."""
    return [replace(delta, grounded=GROUNDED) if delta.finish else delta for delta in deltas]


def test_boxes_stand_beside_the_text(tokenizer: BPETokenizer) -> None:
    """In a stream only the last event has them."""
    serializer = NativeSerializer("chat-1", tokenizer, RequestContext(), logprobs=False)
    plain, deltas = answered(serializer, ACCEPTED, collected(DELTAS)), grounded(DELTAS)
    assert not set(BESIDE) & set(plain)
    assert answered(serializer, ACCEPTED, collected(deltas)) == {**plain, **BESIDE}
    events = parse_all(serializer.event(ACCEPTED, delta) for delta in deltas)
    assert not any(set(BESIDE) & set(event) for event in events)
    last = parse(serializer.closing(ACCEPTED, 3))
    told = {name: plain[name] for name in ("usage", "media")}
    assert last == {"id": "chat-1", "text": "", "finish_reason": "stop", **told, **BESIDE}


def test_boxes_of_several_answers_stand_in_each(tokenizer: BPETokenizer) -> None:
    serializer = NativeSerializer("chat-1", tokenizer, RequestContext(), logprobs=False, n=2)
    deltas = grounded(SEVERAL)
    answers = answered(serializer, ACCEPTED, collected(deltas))["answers"]
    assert [{key: answer[key] for key in BESIDE} for answer in answers] == [BESIDE, BESIDE]
    events = parse_all(serializer.event(ACCEPTED, delta) for delta in deltas)
    assert [set(BESIDE) <= set(event) for event in events] == [event["finish_reason"] is not None for event in events]
    assert set(parse(serializer.closing(ACCEPTED, 4))) == {"id", "text", "finish_reason", "usage", "media"}


def test_each_medium_is_told_as_the_model_sees_it(tokenizer: BPETokenizer) -> None:
    """In pixels, where it has any; an answer to text alone has no such field."""
    first, second = ACCEPTED.media
    seen = replace(ACCEPTED, media=(replace(first, seen=(224, 168)), replace(second, kind="audio")))
    serializer = NativeSerializer("chat-1", tokenizer, RequestContext(), logprobs=False)
    assert answered(serializer, seen, collected(DELTAS))["media"] == [
        {"kind": "image", "tokens": 2, "width": 224, "height": 168}, {"kind": "audio", "tokens": 2},
    ]  # fmt: skip
    assert "media" not in answered(serializer, replace(ACCEPTED, media=()), collected(DELTAS))


def test_a_bare_list_is_what_is_put_in() -> None:
    assert read_native(b'[{"text": "Hi"}]') == read_native(native())


def test_a_chat_is_read_whole() -> None:
    body = read_native(
        native(system="Be brief.", history=[{"inputs": [{"text": "A"}], "text": "B"}], model="tiny", stream=True)
    )
    assert isinstance(body.chat, Chat)
    assert [turn.role for turn in body.chat.turns] == ["system", "user", "assistant", "user"]
    assert (body.model, body.stream, body.chat_param, body.sampling) == ("tiny", True, "inputs", SamplingRequest())


def test_usage_is_always_told() -> None:
    assert read_native(native()).include_usage and read_native(native(stream=True)).include_usage


@each_of(
    ("parameters", "grounding"),
    [(None, "boxes"), ({}, "boxes"), ({"draw_boxes": False}, "boxes"), ({"draw_boxes": None}, "boxes"),
     ({"draw_boxes": True}, "drawn")],
)  # fmt: skip
def test_boxes_are_found_always_and_drawn_on_request(parameters: Any, grounding: str) -> None:
    assert read_native(native(parameters=parameters)).grounding == grounding


@each_of(
    ("name", "meant"),
    [
        ("max_tokens", "; it stands in 'parameters'"), ("temperature", "; it stands in 'parameters'"),
        ("messages", "; POST /v1/chat/completions takes it"), ("prompt", "; POST /v1/completions takes it"),
        ("Stream", "; did you mean 'stream'?"), ("sytem", "; did you mean 'system'?"), ("", ""), ("user", ""),
    ],
)  # fmt: skip
def test_an_unknown_field_is_refused_by_its_name(name: str, meant: str) -> None:
    error = refusal(read_native, native(**{name: 1}))
    assert (error.kind, error.param, error.code) == ("invalid_request", name, "unknown_field")
    assert error.message == f"{name!r} is not a field of a chat request{meant}"


@each_of(
    ("name", "meant"),
    [
        ("temprature", "; did you mean 'temperature'?"), ("max_new_tokens", "; did you mean 'max_tokens'?"),
        ("drawboxes", "; did you mean 'draw_boxes'?"), ("tools", ""),
    ],
)  # fmt: skip
def test_an_unknown_parameter_is_refused_by_its_path(name: str, meant: str) -> None:
    error = refusal(read_native, native(parameters={name: None}))
    assert (error.param, error.code) == (f"parameters.{name}", "unknown_parameter")
    assert error.message == f"parameters.{name}: there is no such parameter{meant}"


@each_of(
    ("inputs", "meant"),
    [([{"imgae": "a.png"}], "image"), ([{"txt": "Hi"}], "text"), ([{"video": "a.mp4", "num_frame": 4}], "num_frames")],
)
def test_a_misspelt_part_is_told_what_was_meant(inputs: list[Any], meant: str) -> None:
    with pytest.raises(ChatError, match=rf"; did you mean '{meant}'\?$"):
        read_native(native(inputs=inputs))


@each_of(
    ("name", "values"), [("stream", [0, 1, "true", []]), ("model", [0, True, []]), ("parameters", [0, False, [], ""])]
)
def test_a_field_of_another_type_is_named(name: str, values: list[Any]) -> None:
    for value in values:
        error = refusal(read_native, native(**{name: value}))
        assert (error.kind, error.param) == ("invalid_request", name)


@each_of("value", [0, 1, "true", []])
def test_drawing_is_asked_for_by_a_truth(value: Any) -> None:
    assert refusal(read_native, native(parameters={"draw_boxes": value})).param == "parameters.draw_boxes"


@each_of(("raw", "param"), [(b"{}", "inputs"), (b"[]", "inputs"), (b'[{"text": 3}]', "inputs[0].text")])
def test_what_is_wrong_inside_a_chat_is_named(raw: bytes, param: str) -> None:
    with pytest.raises(ChatError) as caught:
        read_native(raw)
    assert caught.value.param == param


@each_of("body", [{"k" * 100_000: 1}, {"parameters": {"k" * 100_000: 1}}])
def test_a_long_unknown_key_is_shortened_in_the_answer(body: dict[str, Any]) -> None:
    error = refusal(read_native, native(**body))
    assert len(error.message) < 200 and len(error.param or "") < 100
