"""Anthropic's messages and OpenAI's transcriptions over running servers: the other routes' answers, and errors."""

import base64
import json
import random
from typing import Any

import httpx
import pytest

from tests.e2e.audio_chats import GREEDY, WAV, sound_url
from tests.e2e.running import RunningServer, data_url, picture
from tests.server.http.routes.wrong_messages import WRONG

pytestmark = pytest.mark.process

MESSAGES, FORM = "/v1/messages", "/v1/audio/transcriptions"
PICTURE = picture(120, 90)
BLOCK = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PICTURE).decode()},
}
WORDS = {"type": "text", "text": "What is it?"}
ASKED: list[Any] = [{"role": "user", "content": [BLOCK, WORDS]}]
THEIRS: list[Any] = [
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(PICTURE)}}, WORDS]}
]
# A model of random weights writes only what it must.
SHORT: dict[str, Any] = {"max_tokens": 8, "temperature": 0}


def message(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.http.post(MESSAGES, json={"messages": ASKED, **SHORT, **fields})


def refused(answer: httpx.Response, status: int, kind: str, param: str | None = None) -> None:
    """An error as Anthropic's clients read it, with what the other routes say of it."""
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (status, "error", kind), answer.text
    assert {"message", "param", "code"} <= body["error"].keys() and body["error"]["param"] == param
    assert body["request_id"] and answer.headers["request-id"] == answer.headers["x-request-id"]


def test_it_says_what_the_other_route_says(server: RunningServer) -> None:
    said = message(server).json()
    other = server.http.post("/v1/chat/completions", json={"messages": THEIRS, **SHORT}).json()
    assert said["content"] == [{"type": "text", "text": other["choices"][0]["message"]["content"]}]
    usage, theirs = said["usage"], other["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == theirs["prompt_tokens"]
    assert usage["output_tokens"] == theirs["completion_tokens"] == 8 and said["stop_reason"] == "max_tokens"
    text = said["content"][0]["text"]
    stop = text[len(text) // 2 :][:3]
    cut = message(server, stop_sequences=["never said", stop]).json()
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", stop)
    assert cut["content"][0]["text"] == text[: text.index(stop)]


def test_a_count_is_that_of_tokenize(server: RunningServer) -> None:
    then = {"role": "assistant", "content": "A ferry"}
    counted = server.http.post(f"{MESSAGES}/count_tokens", json={"messages": [*ASKED, then], "system": "Be brief."})
    ours = [{"role": "system", "content": "Be brief."}, *THEIRS, then]
    other = server.http.post("/tokenize", json={"messages": ours, "continue_final_message": True})
    assert counted.json() == {"input_tokens": other.json()["count"]}


def test_errors_of_every_stage_are_anthropics(server: RunningServer, small: RunningServer) -> None:
    broken = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    bad = message(server, messages=[{"role": "user", "content": [WORDS, broken]}])
    refused(bad, 400, "invalid_request_error", "messages[0].content[1]")
    refused(message(server, model="none"), 404, "not_found_error", "model")
    refused(server.http.post(f"{MESSAGES}/batches", json={}), 404, "not_found_error")
    refused(server.http.get(MESSAGES), 405, "invalid_request_error")
    refused(small.http.post(MESSAGES, content=b" " * (2 << 20)), 413, "request_too_large")
    refused(
        small.http.post(MESSAGES, content=b"{", headers={"content-type": "application/json"}),
        400,
        "invalid_request_error",
    )
    long = message(server, stop_sequences=["x" * 1000] * 16, max_tokens=1 << 30)
    assert long.status_code == 200, "it stays within what a body may ask for"
    other = server.http.post("/v1/chat/completions", json={"messages": []})
    assert other.json().keys() == {"error"} and "request-id" not in other.headers


@pytest.mark.parametrize("field", sorted({param.split("[")[0].split(".")[0] for _, param in WRONG}))
def test_wrong_values_are_complaints(server: RunningServer, field: str) -> None:
    """Never a 5xx, and never an answer to what was not understood."""
    for fields, param in WRONG:
        if param.split("[")[0].split(".")[0] == field:
            refused(message(server, **fields), 400, "invalid_request_error", param)


def test_random_values_anywhere_are_complaints_or_answers(server: RunningServer) -> None:
    """Whatever stands in the place of one value of a body, however deep."""
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [WORDS]}
    turns: list[Any] = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    whole: Any = {
        "messages": [{"role": "user", "content": [WORDS]}, *turns], "system": [WORDS], "tools": [tool], "stream": False,
        "tool_choice": {"type": "auto"}, "stop_sequences": ["a"], "metadata": {"user_id": "x"}, "max_tokens": 1,
    }  # fmt: skip
    odd: list[Any] = [None, True, -1, 1e300, "", "x", [], [[]], {}, {"type": "text"}, "\x00", 1 << 70]
    rng, statuses = random.Random(0), []
    for _ in range(150):
        body = json.loads(json.dumps(whole))
        place = body
        while True:
            key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.2:
                break
            place = place[key]
        place[key] = rng.choice(odd)
        answer = server.http.post(f"{MESSAGES}/count_tokens", json=body)
        statuses.append(answer.status_code)
        assert answer.status_code in (200, 400), (body, answer.text)
        assert "input_tokens" in answer.json() or answer.json()["type"] == "error"
    assert statuses.count(400) > 20


# ---- transcriptions


def transcribed(server: RunningServer, **fields: Any) -> httpx.Response:
    return server.http.post(FORM, files={"file": ("a.wav", WAV)}, data=fields)


def test_a_transcript_is_the_answer_of_a_chat(omni: RunningServer) -> None:
    """The default words are the family's; an own prompt stands in their place."""
    for prompt, turns in (
        ("What is in it?", []),
        (None, [{"role": "system", "content": "You are a speech recognition model."}]),
    ):
        words = {"type": "text", "text": prompt or "Transcribe the audio into text."}
        chat: list[Any] = [
            *turns, {"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": sound_url(WAV)}}, words]},
        ]  # fmt: skip
        n = omni.http.post("/tokenize", json={"messages": chat}).json()["count"]
        asked = {**GREEDY, "ignore_eos": False, "max_tokens": 400}
        said = omni.http.post("/v1/chat/completions", json={"messages": chat, **asked}).json()
        fields = {} if prompt is None else {"prompt": prompt}
        answer = transcribed(omni, **fields)
        body = answer.json()
        assert answer.status_code == 200 and body["usage"]["input_tokens"] == n, answer.text
        assert body["usage"]["input_token_details"]["audio_tokens"] == 25
        theirs = said["choices"][0]["message"]["content"]
        assert body["text"][: len(theirs)] == theirs[: len(body["text"])]


def test_a_salt_parts_what_is_kept_of_a_sound(omni: RunningServer) -> None:
    """By its time nobody learns that somebody else sent the same."""
    found = []
    for salt in ("a", "a", "b"):
        before = omni.metric("mm_cache_hits_total")
        assert transcribed(omni, cache_salt=salt).status_code == 200
        found.append(omni.metric("mm_cache_hits_total") - before)
    assert found == [0, 1, 0]


def test_errors_of_transcriptions(omni: RunningServer, server: RunningServer, small: RunningServer) -> None:
    def complaint(answer: httpx.Response) -> tuple[int, str | None, str | None]:
        assert "type" not in answer.json()
        error = answer.json()["error"]
        return answer.status_code, error["param"], error["code"]

    assert complaint(transcribed(server)) == (400, "file", "unsupported_modality")
    assert complaint(transcribed(omni, model="none")) == (404, "model", "model_not_found")
    assert complaint(transcribed(omni, response_format="srt")) == (400, "response_format", None)
    assert complaint(omni.http.post(FORM, files={"file": b"no sound"}))[:2] == (400, "file")
    assert complaint(omni.http.post(FORM, json={"file": "x"})) == (400, None, "unsupported_media_type")
    head = {"content-type": "multipart/form-data; boundary=b"}
    assert complaint(omni.http.post(FORM, content=b"--b\r\nX", headers=head)) == (400, None, "invalid_form")
    large = small.http.post(FORM, files={"file": b"x" * (2 << 20)})
    assert complaint(large) == (413, None, "body_too_large")
    page = omni.http.post(FORM, files={"file": WAV}, headers={"origin": "https://a.example"})
    assert complaint(page) == (403, None, "origin_not_allowed")
    assert complaint(omni.http.post("/v1/audio/translations", json={}))[2] == "route_not_supported"
