"""When the first event of a stream comes, and what its chunks hold beside the text."""

import re
import time
from typing import Any

import openai
import pytest

from tests.e2e.running import RunningServer
from tests.e2e.test_chat import GREEDY, IMAGE, events, image_part, user

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
LONG = "one two three four five six seven eight nine ten " * 400  # its prompt takes longer than a token of its answer
ROLE = {"role": "assistant", "content": ""}
TEXT = {"type": "text", "text": "what is it?"}


def first_events(server: RunningServer, url: str, body: dict[str, Any]) -> tuple[float, list[float]]:
    """Seconds to the headers, and to each event."""
    start = time.monotonic()
    with server.http.stream("POST", url, json={**body, "stream": True}) as answer:
        headers = time.monotonic() - start
        return headers, [time.monotonic() - start for line in answer.iter_lines() if line.startswith("data: ")]


@pytest.mark.parametrize("url", [CHAT, "/chat"])
def test_the_first_event_comes_with_the_first_token(server: RunningServer, url: str) -> None:
    """As the server's own histogram has it, and not when the prompt was accepted."""
    parameters = {**GREEDY, "max_tokens": 4}
    prompt = f"{url} {LONG}"  # that nobody has sent before
    body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], **parameters}
    if url == "/chat":
        body = {"inputs": [{"text": prompt}], "parameters": parameters}
    before = server.metric("time_to_first_token_seconds_sum")
    headers, seconds = first_events(server, url, body)
    measured = server.metric("time_to_first_token_seconds_sum") - before
    assert measured > 0.02, "the prompt is too short for this test"
    assert measured * 0.9 <= headers <= seconds[0]


@pytest.mark.parametrize("n", [1, 3])
def test_the_role_of_each_answer_comes_before_its_text(server: RunningServer, n: int) -> None:
    body = {"messages": user(TEXT), **GREEDY, "n": n, "temperature": 1.5, "seed": 3, "stream": True}
    chunks = [chunk["choices"][0] for chunk in events(server.http.post(CHAT, json=body))]
    for index in range(n):
        own = [chunk["delta"] for chunk in chunks if chunk["index"] == index]
        assert own[0] == ROLE and not any("role" in delta for delta in own[1:])
    assert chunks[0]["delta"] == ROLE


def test_an_error_while_the_prompt_is_computed_has_its_status(server: RunningServer) -> None:
    """The only ids that may be drawn are placeholders, which nothing draws; known with the first token."""
    ids = server.http.post("/tokenize", json=[{"image": IMAGE}]).json()["ids"]
    pad = max(set(ids), key=ids.count)
    answer = server.http.post(CHAT, json={"messages": user(TEXT), "allowed_token_ids": [pad], "stream": True})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "allowed_token_ids"


def test_usage_in_every_chunk(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": user(TEXT), **GREEDY, "stream": True, "stream_options": options}
    chunks = events(server.http.post(CHAT, json=body))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0 and counts == sorted(counts) and counts[-2:] == [8, 8] and chunks[-1]["choices"] == []
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1
    assert len({chunk["usage"]["prompt_tokens_details"]["cached_tokens"] for chunk in chunks}) == 1


def test_a_prompt_that_was_asked_before_is_in_the_cache(server: RunningServer) -> None:
    """All blocks of 16 tokens but the one of the last token, on each route."""
    text = "a prompt that nobody else of these tests asks, and that is long enough for some blocks of the cache"
    body = {"messages": user({"type": "text", "text": text}), **GREEDY}
    native = {"inputs": [{"text": text}], "parameters": {"max_tokens": 4}}
    for route, request in ((CHAT, body), ("/chat", native)):
        answers = [server.http.post(route, json=request).json() for _ in range(2)]
        assert all("usage" in answer for answer in answers), answers
        usages = [answer["usage"] for answer in answers]
        n = usages[0]["prompt_tokens"]
        assert n > 32 and usages[1]["prompt_tokens_details"]["cached_tokens"] == (n - 1) // 16 * 16
    metrics = server.http.get("/metrics").text
    found = re.findall(r"^pixelferry:prefix_cache_(hits|queries)_total{.*} (\S+)$", metrics, re.MULTILINE)
    counts = {name: float(value) for name, value in found}
    assert 0 < counts["hits"] < counts["queries"]


def test_ids_of_prompt_and_answer(server: RunningServer) -> None:
    """Those of /tokenize, of a picture too, and as many as usage counts; alike plain and streamed."""
    messages = user(image_part(), TEXT)
    body = {"messages": messages, **GREEDY, "max_tokens": 20, "return_token_ids": True}
    whole = server.http.post(CHAT, json=body).json()
    assert whole["prompt_token_ids"] == server.http.post("/tokenize", json={"messages": messages}).json()["ids"]
    assert len(whole["choices"][0]["token_ids"]) == whole["usage"]["completion_tokens"] == 20
    chunks = events(server.http.post(CHAT, json={**body, "stream": True}))
    assert [chunk.get("prompt_token_ids") for chunk in chunks][:2] == [whole["prompt_token_ids"], None]
    ids = [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]
    assert "prompt_token_ids" not in server.http.post(CHAT, json={**body, "return_token_ids": False}).json()
    named = {**body, "logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
    entries = server.http.post(CHAT, json=named).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{i}" for i in ids]
    assert all(entry["top_logprobs"][0]["token"].startswith("token_id:") for entry in entries)
    server.assert_nothing_held()


def test_the_sdk_reads_both(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = user(TEXT)
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        with client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=4, stream=True, stream_options=options
        ) as stream:
            assert all(chunk.usage is not None for chunk in stream)
        whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4)
        assert whole.usage is not None and whole.usage.prompt_tokens_details is not None
        assert whole.usage.prompt_tokens_details.cached_tokens is not None
