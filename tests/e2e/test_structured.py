"""Answers in a form, from a running server: with pictures, in streams, several, refused; and what they leave behind."""

import json
import re
import signal
import threading
from os import kill
from typing import Any

import httpx
import pytest

from tests.e2e.running import RunningServer, data_url, picture, until
from tests.e2e.test_chat import events, user

pytestmark = pytest.mark.process

IMAGE = data_url(picture(120, 90))
MESSAGES = user({"type": "image_url", "image_url": {"url": IMAGE}}, {"type": "text", "text": "what is it?"})
SCHEMA = {
    "type": "object", "required": ["kind", "n"], "additionalProperties": False,
    "properties": {"kind": {"enum": ["cat", "dog"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}


def post(server: RunningServer, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": MESSAGES, "temperature": 1, "max_tokens": 60, **fields}
    return server.http.post("/v1/chat/completions", json=body)


def is_pet(text: str) -> bool:
    value = json.loads(text)
    return value["kind"] in ("cat", "dog") and 0 <= value["n"] <= 99 and set(value) == {"kind", "n"}


def test_a_picture_is_answered_in_json_by_a_schema(server: RunningServer) -> None:
    answer = post(server, response_format=FORMAT, n=3, seed=1)
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        assert is_pet(choice["message"]["content"]) and choice["finish_reason"] == "stop"


def test_a_stream_and_the_other_routes_hold_it_too(server: RunningServer) -> None:
    streamed = events(post(server, response_format=FORMAT, stream=True))
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in streamed if event != "[DONE]")
    assert is_pet(text)
    regex = {"structured_outputs": {"regex": "[ab]{3}-[0-9]"}, "temperature": 1, "max_tokens": 30}
    ids = server.http.post("/tokenize", json=[{"text": "A"}]).json()["ids"]
    for prompt in ("some text", ids):
        whole = server.http.post("/v1/completions", json={"model": "tiny", "prompt": prompt, **regex})
        assert whole.status_code == 200, whole.text
        assert re.fullmatch("[ab]{3}-[0-9]", whole.json()["choices"][0]["text"])
    native = server.chat({"image": IMAGE}, {"text": "what?"}, temperature=1, max_tokens=30)
    assert native.status_code == 200
    body = {"inputs": [{"image": IMAGE}], "structured_outputs": {"choice": ["yes", "no"]}}
    assert server.http.post("/chat", json=body).json()["text"] in ("yes", "no")


def test_a_stop_string_leaves_the_beginning_of_what_fits(server: RunningServer) -> None:
    """Of several answers, whole and streamed, beside rules; by their own end they fit as a whole."""
    asked = {"structured_outputs": {"regex": "[a-f]{6}-[0-9]{3}"}, "n": 6, "max_tokens": 30}
    seen: set[tuple[str, bool]] = set()
    sets: tuple[dict[str, Any], ...] = (
        {}, {"min_tokens": 3}, {"presence_penalty": 1.5, "include_stop_str_in_output": True},
    )  # fmt: skip
    for i, rules in enumerate(sets):
        for stop in (["b", "c"], ["-1", "7"], ["nowhere"]) if not rules else (["b", "c"],):
            body = {**asked, **rules, "stop": stop, "seed": i}
            choices = post(server, **body).json()["choices"]
            streamed = dict.fromkeys(range(6), "")
            for event in events(post(server, **body, stream=True)):
                for choice in event["choices"] if event != "[DONE]" else ():
                    streamed[choice["index"]] += choice["delta"].get("content") or ""
            for choice in choices:
                text = choice["message"]["content"]
                is_whole = re.fullmatch("[a-f]{6}-[0-9]{3}", text) is not None
                assert is_whole or re.fullmatch("[a-f]{0,6}|[a-f]{6}-[0-9]{0,3}", text), (rules, stop, text)
                assert choice["finish_reason"] == "stop" and streamed[choice["index"]] == text
                if "include_stop_str_in_output" in rules:
                    assert is_whole or text.endswith(tuple(stop))
                elif not is_whole:
                    assert not any(one in text for one in stop)
                seen.add((stop[0], is_whole))
    assert {("b", False), ("-1", False), ("nowhere", True)} <= seen and ("nowhere", False) not in seen


def test_what_cannot_be_held_names_its_field_and_place(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    for _ in range(2):  # the second time it is known
        error = post(server, **fields)
        assert error.status_code == 400
        said = error.json()["error"]
        assert (said["param"], said["code"]) == ("response_format.json_schema.schema", "structured_output")
        assert "/properties/a/not" in said["message"]


def test_no_token_left_is_a_400_and_an_event_of_a_begun_stream(server: RunningServer) -> None:
    fields = {"structured_outputs": {"choice": ["a"]}, "min_tokens": 9}
    whole = post(server, **fields)
    assert whole.status_code == 400 and whole.json()["error"]["code"] == "structured_output"
    assert whole.json()["error"]["param"] == "structured_outputs.choice"
    streamed = post(server, **fields, stream=True)
    last = json.loads(streamed.text.strip().split("\n")[-1].removeprefix("data: "))
    assert streamed.status_code == 200 and last["error"]["code"] == "structured_output"
    server.assert_nothing_held()


@pytest.mark.faults
def test_a_text_waits_for_no_compiling_and_a_dead_worker_is_asked_again(start: Any) -> None:
    """A worker that is stopped stands for one whose compiler takes long."""
    with start("--workers", "1") as server:
        (worker,) = server.children("worker")
        kill(worker, signal.SIGSTOP)
        answers: list[httpx.Response] = []
        asked = threading.Thread(target=lambda: answers.append(post(server, response_format=FORMAT)))
        asked.start()
        until("it is inside", lambda: server.http.get("/health/ready").json()["requests"] == 1)
        assert server.chat({"text": "Hi"}, max_tokens=2).status_code == 200
        assert not answers
        kill(worker, signal.SIGKILL)
        asked.join(60)
        assert answers[0].status_code == 200 and is_pet(answers[0].json()["choices"][0]["message"]["content"])
