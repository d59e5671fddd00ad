"""Every parameter of sampling over both routes: it arrives, and the answer shows it."""

from typing import Any

import openai
import pytest

from tests.e2e.running import RunningServer, data_url, picture
from tests.e2e.test_chat import GREEDY, complete, events, user

pytestmark = pytest.mark.process

IMAGE = data_url(picture(120, 90))
ASK = [{"image": IMAGE}, {"text": "what is it?"}]
MESSAGES = user({"type": "image_url", "image_url": {"url": IMAGE}}, {"type": "text", "text": "what is it?"})
FREE: dict[str, Any] = {"temperature": 1.5, "top_p": 1, "top_k": 0, "max_tokens": 12, "ignore_eos": True}


def native_text(server: RunningServer, **parameters: Any) -> str:
    answer = server.chat(*ASK, **parameters)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["text"]
    return text


def openai_texts(server: RunningServer, **fields: Any) -> list[str]:
    return [choice["message"]["content"] for choice in complete(server, MESSAGES, **fields)["choices"]]


CHANGES: list[dict[str, Any]] = [
    {"repetition_penalty": 10.0}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"logit_bias": {"65": 100}},
    {"allowed_token_ids": [32, 33]}, {"bad_words": ["e", "é", "a", "o", "t", "i"]},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_rule_changes_the_greedy_answer_alike_on_both_routes(server: RunningServer, change: dict[str, Any]) -> None:
    fields = {**GREEDY, "max_tokens": 60}
    changed = native_text(server, **fields, **change)
    assert changed == openai_texts(server, **fields, **change)[0]
    assert changed != native_text(server, **fields)


def test_min_p_of_one_leaves_only_the_likeliest(server: RunningServer) -> None:
    assert native_text(server, **FREE, seed=3, min_p=1) == native_text(server, **{**FREE, "temperature": 0})
    assert native_text(server, **FREE, seed=3) != native_text(server, **FREE, seed=3, min_p=1)


def test_stop_tokens_and_what_is_shown_of_them(server: RunningServer) -> None:
    ids = server.http.post("/tokenize", json=[{"text": "A"}]).json()["ids"]
    letter = next(i for i in ids if i == 32)  # a byte-level vocabulary's A
    always: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "logit_bias": {str(letter): 100}}
    whole = server.chat(*ASK, **always).json()
    assert (whole["text"], whole["finish_reason"]) == ("AAAAAA", "length")
    endings: list[tuple[dict[str, Any], str, int]] = [
        ({}, "", 1), ({"include_stop_str_in_output": True}, "A", 1), ({"ignore_eos": True}, "", 1),
    ]  # fmt: skip
    for more, text, n in endings:
        body = server.chat(*ASK, **always, stop_token_ids=[letter], **more).json()
        assert (body["text"], body["finish_reason"], body["usage"]["completion_tokens"]) == (text, "stop", n)
    strings: list[tuple[dict[str, Any], str]] = [
        ({}, ""),
        ({"include_stop_str_in_output": True}, "AA"),
        ({"min_tokens": 3}, "AAA"),
    ]
    for more, text in strings:
        body = server.chat(*ASK, **always, stop="AA", **more).json()
        assert (body["text"], body["finish_reason"]) == (text, "stop")


def test_min_tokens_keeps_an_answer_going(server: RunningServer) -> None:
    ends = {"temperature": 0, "max_tokens": 9, "stop_token_ids": [32], "logit_bias": {"32": 100}}
    assert server.chat(*ASK, **ends).json()["usage"]["completion_tokens"] == 1
    assert server.chat(*ASK, **ends, min_tokens=5).json()["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_are_those_of_single_chats(server: RunningServer, stream: bool) -> None:
    alone = [server.chat(*ASK, **FREE, seed=5 + i).json() for i in range(3)]
    fields = {**FREE, "seed": 5, "n": 3}
    if stream:
        parts = events(server.http.post("/chat", json={"inputs": ASK, "parameters": fields, "stream": True}))
        texts = ["".join(part["text"] for part in parts if part.get("index") == i) for i in range(3)]
        ends = {part["index"]: part["finish_reason"] for part in parts[1:-1] if part["finish_reason"]}
        usage = parts[-1]["usage"]
        body = {"messages": MESSAGES, **fields, "stream": True, "stream_options": {"include_usage": True}}
        chunks = events(server.http.post("/v1/chat/completions", json=body))
        choices = [chunk["choices"][0] for chunk in chunks[:-1]]
        for i in range(3):
            mine = [choice for choice in choices if choice["index"] == i]
            assert mine[0]["delta"]["role"] == "assistant" and mine[-1]["finish_reason"] == "length"
            assert "".join(choice["delta"].get("content", "") for choice in mine) == texts[i]
        assert chunks[-1]["usage"] == usage
    else:
        whole = server.http.post("/chat", json={"inputs": ASK, "parameters": fields}).json()
        texts, usage = [answer["text"] for answer in whole["answers"]], whole["usage"]
        ends = {answer["index"]: answer["finish_reason"] for answer in whole["answers"]}
        assert openai_texts(server, **fields) == texts
    assert texts == [answer["text"] for answer in alone] and len(set(texts)) == 3
    assert ends == dict.fromkeys(range(3), "length")
    assert usage["completion_tokens"] == 36 and usage["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    server.assert_nothing_held()


def test_one_of_several_ends_by_a_stop_string(server: RunningServer) -> None:
    alone = [server.chat(*ASK, **FREE, seed=5 + i).json()["text"] for i in range(3)]
    stop = next(c for c in alone[1] if c not in alone[0] + alone[2])
    whole = server.chat(*ASK, **FREE, seed=5, n=3, stop=stop).json()["answers"]
    assert [answer["finish_reason"] for answer in whole] == ["length", "stop", "length"]
    assert [answer["text"] for answer in whole] == [alone[0], alone[1][: alone[1].index(stop)], alone[2]]


def test_the_sdk_sees_the_choices(server: RunningServer) -> None:
    messages: Any = MESSAGES
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(
            model="tiny", messages=messages, n=2, max_tokens=4, seed=1, temperature=1.2, presence_penalty=0.5,
            frequency_penalty=0.5, logit_bias={"65": -100}, logprobs=True, top_logprobs=2,
        )  # fmt: skip
    assert [choice.index for choice in whole.choices] == [0, 1]
    for choice in whole.choices:
        assert choice.logprobs is not None and choice.logprobs.content
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
