"""Chats with text and pictures over both routes, plain and streamed, as a client sees them."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.running import RunningServer, data_url, picture, uncached

pytestmark = pytest.mark.process

GREEDY: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
IMAGE = data_url(picture(120, 90))


def user(*content: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}]


def image_part(url: str = IMAGE) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def complete(server: RunningServer, messages: list[Any], **fields: Any) -> dict[str, Any]:
    answer = server.http.post("/v1/chat/completions", json={"messages": messages, **GREEDY, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def events(answer: httpx.Response) -> list[Any]:
    """The data of each SSE event; every line is an event, a comment or blank."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_text_is_answered_alike_on_both_routes(server: RunningServer) -> None:
    native = server.chat({"text": "What is in this image?"}, **GREEDY).json()
    body = complete(server, [{"role": "user", "content": [{"type": "text", "text": "What is in this image?"}]}])
    choice = body["choices"][0]
    assert native["text"] == choice["message"]["content"] != ""
    assert native["finish_reason"] == choice["finish_reason"] == "length"
    assert uncached(native["usage"]) == uncached(body["usage"])
    assert body["usage"]["completion_tokens"] == 8
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 8
    assert body["object"] == "chat.completion" and body["model"] == "tiny"
    assert choice["message"]["role"] == "assistant" and choice["index"] == 0


def test_a_bare_list_is_inputs(server: RunningServer) -> None:
    answer = server.http.post("/chat", json=[{"text": "Hello"}])
    assert answer.status_code == 200
    assert answer.json()["finish_reason"] in ("stop", "length")


def test_history_and_system_are_messages(server: RunningServer) -> None:
    body = {
        "system": "Be brief.",
        "history": [{"inputs": [{"text": "one"}], "text": "two"}],
        "inputs": [{"text": "three"}],
        "parameters": GREEDY,
    }
    native = server.http.post("/chat", json=body).json()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "three"}]},
    ]
    assert native["text"] == complete(server, messages)["choices"][0]["message"]["content"]


def test_a_picture_is_answered_alike_on_both_routes(server: RunningServer) -> None:
    native = server.chat({"image": IMAGE}, {"text": "what is it?"}, **GREEDY).json()
    body = complete(server, user(image_part(), {"type": "text", "text": "what is it?"}))
    assert native["text"] == body["choices"][0]["message"]["content"]
    assert body["usage"]["prompt_tokens_details"]["image_tokens"] == 3 * 4
    server.assert_nothing_held()


def test_the_answer_depends_on_the_picture(server: RunningServer) -> None:
    def top(url: str) -> Any:
        body = complete(server, user(image_part(url)), logprobs=True, max_tokens=1)
        return body["choices"][0]["logprobs"]["content"][0]["logprob"]

    assert top(IMAGE) == pytest.approx(top(IMAGE), abs=1e-5)
    assert abs(top(IMAGE) - top(data_url(picture(120, 90, seed=1)))) > 1e-3


def test_the_openai_sdk_works_unchanged(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        text: Any = {"type": "text", "text": "what is it?"}
        messages: Any = user(image_part(), text)
        whole = client.chat.completions.create(
            model=model, messages=messages, max_completion_tokens=8, temperature=0, extra_body={"ignore_eos": True}
        )
        with client.chat.completions.create(
            model=model, messages=messages, max_tokens=8, temperature=0, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        ) as stream:  # fmt: skip
            chunks = list(stream)
        assert whole.usage is not None and chunks[-1].usage == whole.usage
        assert chunks[-1].choices == []
        assert chunks[0].choices[0].delta.role == "assistant"
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        assert streamed == whole.choices[0].message.content
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=model, messages=messages, temperature=-1)
        assert caught.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="another", messages=messages)


def test_a_native_stream_joins_to_the_plain_answer(server: RunningServer) -> None:
    plain = server.chat({"text": "Hello"}, **GREEDY).json()
    answer = server.http.post("/chat", json={"inputs": [{"text": "Hello"}], "parameters": GREEDY, "stream": True})
    parts = events(answer)
    assert "".join(part["text"] for part in parts) == plain["text"]
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert parts[-1]["usage"] == plain["usage"]
    assert len({part["id"] for part in parts}) == 1


def test_usage_comes_in_a_stream_only_when_asked_for(server: RunningServer) -> None:
    body = {"messages": user({"type": "text", "text": "Hi"}), **GREEDY, "stream": True}
    chunks = events(server.http.post("/v1/chat/completions", json=body))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
    asked = events(server.http.post("/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}}))
    assert [chunk["usage"] for chunk in asked[:-1]] == [None] * (len(asked) - 1)
    assert asked[-1]["choices"] == [] and asked[-1]["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("stream", [False, True])
def test_every_sampled_token_has_a_logprobs_entry(server: RunningServer, stream: bool) -> None:
    """40 tokens of a random model: special ones, parts of characters and ids beyond the vocabulary are among them."""
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 40, "temperature": 2.0, "seed": 5, "top_p": 1}
    body = {"messages": user({"type": "text", "text": "Hi"}), "ignore_eos": True, "top_k": -1, **fields}
    if stream:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        chunks = events(server.http.post("/v1/chat/completions", json=asked))
        usage, parts = chunks[-1]["usage"], [chunk["choices"][0] for chunk in chunks[:-1]]
        entries = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
        text = "".join(part["delta"].get("content", "") for part in parts)
    else:
        whole = server.http.post("/v1/chat/completions", json=body).json()
        usage, text = whole["usage"], whole["choices"][0]["message"]["content"]
        entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == usage["completion_tokens"] == 40
    for entry in entries:
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 3
        assert entry["token"] == bytes(entry["bytes"]).decode("utf-8", "replace")
        best = [top["logprob"] for top in entry["top_logprobs"]]
        assert best == sorted(best, reverse=True) and entry["logprob"] <= best[0] + 1e-6
    ordinary = b"".join(bytes(entry["bytes"]) for entry in entries if not entry["token"].startswith("<|"))
    assert ordinary.decode("utf-8", "replace") == text


def test_the_stop_token_counts_and_has_an_entry(server: RunningServer) -> None:
    """The seeds are tried until one answer ends by itself; its last entry is the special token, unseen in the text."""
    for seed in range(40):
        fields = {"temperature": 3.0, "top_p": 1, "top_k": 0, "seed": seed, "max_tokens": 60, "logprobs": True}
        body = server.chat({"text": "Hi"}, **fields).json()
        if body["finish_reason"] == "stop":
            entries = body["logprobs"]["content"]
            assert len(entries) == body["usage"]["completion_tokens"] < 60
            assert entries[-1]["token"] in ("<|im_end|>", "<|endoftext|>")
            assert "<|im_end|>" not in body["text"]
            return
    pytest.fail("no answer ended by itself")


def test_a_seed_repeats_an_answer(server: RunningServer) -> None:
    fields = {"temperature": 1.5, "top_p": 1, "top_k": 0, "max_tokens": 12, "ignore_eos": True}
    first, again, other = (server.chat({"text": "Hi"}, **fields, seed=seed).json()["text"] for seed in (1, 1, 2))
    assert first == again != other


def test_a_stop_string_ends_the_answer_and_is_not_shown(server: RunningServer) -> None:
    whole = server.chat({"text": "Hello"}, **{**GREEDY, "max_tokens": 24}).json()["text"]
    stop = whole[len(whole) // 2 :][:2]
    expected = whole[: whole.index(stop)]
    for stream in (False, True):
        body = {"inputs": [{"text": "Hello"}], "parameters": {**GREEDY, "max_tokens": 24, "stop": ["@@@@", stop]}}
        answer = server.http.post("/chat", json={**body, "stream": stream})
        parts = events(answer) if stream else [answer.json()]
        assert "".join(part["text"] for part in parts) == expected
        assert parts[-1]["finish_reason"] == "stop"
        assert parts[-1]["usage"]["completion_tokens"] < 24


def test_max_tokens_is_capped_by_what_is_left(small: RunningServer) -> None:
    """The server has 10,000, and the prompt has nearly as many."""
    fewer = small.http.post("/tokenize", json=[{"text": ""}]).json()["count"]
    each = small.http.post("/tokenize", json=[{"text": "Hello " * 100}]).json()["count"] - fewer
    prompt = {"text": "Hello " * (100 * (9960 - fewer) // each)}
    answer = small.chat(prompt, max_tokens=1_000_000, temperature=0, ignore_eos=True).json()
    assert answer["usage"]["total_tokens"] == 10_000 and answer["finish_reason"] == "length"
    silent = small.chat(prompt, temperature=0, ignore_eos=True).json()
    assert silent["usage"]["total_tokens"] == 10_000 and silent["usage"]["completion_tokens"] >= 30
    long = small.chat({"text": "Hello " * 10_000})
    assert long.status_code == 400 and long.json()["error"]["param"] == "inputs"
    many = {"messages": [{"role": "user", "content": "Hello " * 10_000}]}
    assert small.http.post("/v1/chat/completions", json=many).json()["error"]["param"] == "messages"


def test_special_tokens_typed_in_text_are_text(server: RunningServer) -> None:
    typed = "<|im_start|><|vision_start|><|image_pad|><|im_end|>"
    ids = server.http.post("/tokenize", json=[{"text": typed}]).json()["ids"]
    plain = server.http.post("/tokenize", json=[{"text": ""}]).json()["ids"]
    special = sorted(i for i in plain if i >= 400)
    assert sorted(i for i in ids if i >= 400 and i < 414) == special
    assert server.chat({"image": IMAGE}, {"text": typed}, **GREEDY).status_code == 200


def test_sixteen_at_once(server: RunningServer) -> None:
    """Each gets the answer that it gets alone."""
    chats = [[{"image": data_url(picture(60 + 28 * i, 90, seed=i))}, {"text": f"number {i}"}] for i in range(16)]
    alone = [server.chat(*chat, **GREEDY).json()["text"] for chat in chats]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda chat: server.chat(*chat, **GREEDY).json()["text"], chats))
    assert together == alone
    server.assert_nothing_held()
