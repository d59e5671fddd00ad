"""Bodies that are made to cost: refused by their counts, while the loop goes on and the workers hear nothing."""

import json
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.faults import LONG
from tests.e2e.running import RunningServer, data_url, picture, until
from tests.hostile.loop_block import loop_of
from tests.hostile.posting import stops, words

pytestmark = pytest.mark.process

LOOP_SECONDS = 0.05
JSON = {"content-type": "application/json"}
PICTURE = data_url(picture(400, 300))
EXCHANGE = b'{"inputs":[{"text":""}],"text":""},'


def post(server: RunningServer, body: bytes, url: str = "/chat") -> httpx.Response:
    """Its answer, which the loop gave beside others."""
    with loop_of(server.url, server.pid) as longest:
        answer = server.http.post(url, content=body, headers=JSON)
        time.sleep(0.01)  # one more look
    longest.assert_within(LOOP_SECONDS)
    return answer


def worker_pages(server: RunningServer) -> list[int]:
    """Resident pages of each worker."""
    return [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.children("worker")]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"history":[' + EXCHANGE * 60_000 + b'{}],"inputs":[{"text":"x"}]}', "too_many_values"),
        (b'{"history":[' + EXCHANGE * 9_000 + EXCHANGE[:-1] + b'],"inputs":[{"text":"x"}]}', "too_many_parts"),
        (b"[" + b'{"image":"a"},' * 30_000 + b'{"image":"a"}]', "too_many_parts"),
        (b"[" + b"[]," * 400_000 + b"[]]", "too_many_values"),
        (b'{"inputs":[{"text":"x"}],"parameters":{"a":[' + b"7," * 600_000 + b"7]}}", "too_many_values"),
    ],
    ids=["exchanges", "turns", "pictures", "lists", "numbers"],
)
def test_a_chat_of_empty_parts_reaches_no_worker(server: RunningServer, body: bytes, code: str) -> None:
    pages = worker_pages(server)
    refused = server.metric(f'mm_rejected_total{{reason="{code}"}}')
    answer = post(server, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert server.metric(f'mm_rejected_total{{reason="{code}"}}') == refused + 1
    grown = [now - before for now, before in zip(worker_pages(server), pages, strict=True)]
    assert max(grown) < 256, "a worker that had it would have grown by megabytes"
    assert server.metric("mm_inflight_bytes") == 0


@pytest.mark.parametrize("text", ["\\u0001", "\x7f", "k"])
def test_a_key_of_megabytes_comes_back_short(server: RunningServer, text: str) -> None:
    long = (text * (2 << 20))[: 2 << 20].encode()
    bodies = [b'{"inputs":[{"text":"x"}],"%s":1}', b'{"inputs":[{"%s":1}]}', b'{"inputs":[{"text":"x","%s":1}]}']
    bodies += [b'{"inputs":[{"text":"x"}],"parameters":{"%s":1}}', b'{"inputs":[{"image":"%s"}]}']
    for body in bodies:
        answer = post(server, body % long)
        assert answer.status_code == 400 and len(answer.content) < 1500
    for url, body in (("messages", b'{"messages":[{"role":"%s","content":"x"}]}'), ("model", b'{"model":"%s","a":[]}')):
        answer = post(server, body % long, "/v1/chat/completions")
        assert 400 <= answer.status_code < 500 and len(answer.content) < 1500, url


def test_arguments_of_tool_calls_are_counted_though_they_are_texts(server: RunningServer) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a":[' + "[]," * 200_000 + "[]]}"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    answer = post(server, json.dumps({"messages": messages}).encode(), "/v1/chat/completions")
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith(
        "messages[1].tool_calls[0].function"
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"prompt": ["a"] * 64, "bad_words": words(128, 256)}, 400),
        ({"prompt": ["a"] * 30, "bad_words": words(128, 256)}, 200),
        ({"prompt": ["a"] * 64, "stop": stops(16, 1024), "n": 8}, 200),
        ({"prompt": ["🙂" * 380] * 64, "n": 8, "echo": True, "logprobs": 20}, 400),
        ({"prompt": [[7] * 2500], "n": 8, "echo": True, "logprobs": 20}, 200),
        ({"prompt": [[7] * 2500], "n": 8, "echo": True, "logprobs": 20, "stream": True}, 200),
    ],
    ids=["bad words", "fewer bad words", "stops", "scores", "fewer scores", "streamed scores"],
)
def test_a_body_that_asks_for_much_does_not_hold_the_loop(
    server: RunningServer, body: dict[str, Any], status: int
) -> None:
    answer = post(server, json.dumps({"max_tokens": 1, **body}, ensure_ascii=False).encode(), "/v1/completions")
    assert answer.status_code == status
    if body.get("stream"):
        chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        for i in range(8):
            scored = [c["choices"][0]["logprobs"]["token_logprobs"] for c in chunks if c["choices"][0]["index"] == i]
            assert sum(map(len, scored)) == 2501


@pytest.mark.parametrize("part", [{"text": "Hi"}, {"image": PICTURE}], ids=["text", "picture"])
def test_blanks_are_given_back_once_a_body_is_read(server: RunningServer, part: dict[str, str]) -> None:
    """What the request holds stays counted as long as it is answered."""
    held = len(part.get("image", "Hi"))
    body = json.dumps({"inputs": [part], "stream": True, "parameters": LONG})[:-1].encode() + b" " * (8 << 20) + b"}"
    with httpx.stream("POST", f"{server.url}/chat", content=body, headers=JSON, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        stream = answer.iter_raw()  # kept: with it the connection would close
        next(stream)
        assert held <= server.metric("mm_inflight_bytes") <= held + 4096
    until("all is given back", lambda: server.metric("mm_inflight_bytes") == 0)


def test_log_probabilities_are_bounded_before_anything_is_computed(server: RunningServer) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "n": 8, "logprobs": True}
    answer = server.http.post("/v1/chat/completions", json={**body, "top_logprobs": 20, "max_tokens": 30000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
    answer = server.http.post("/v1/completions", json={"prompt": ["x"] * 64, "n": 8, "logprobs": 5, "max_tokens": 400})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "asks_too_much")


def asked(server: RunningServer, *headers: str, method: str = "POST /chat") -> int:
    """The status of a chat with exactly these headers."""
    body = b'{"inputs":[{"text":"x"}],"parameters":{"max_tokens":1}}'
    lines = [f"{method} HTTP/1.1", *headers, f"Content-Length: {len(body)}", "Connection: close", "", ""]
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port or 0), 30) as sock:
        sock.sendall("\r\n".join(lines).encode() + body)
        return int(sock.makefile("rb").readline().split()[1])


JSON_LINE = "Content-Type: application/json"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (("Host: localhost", JSON_LINE), 200),
        (("Host: 127.0.0.1:1", "content-type: Application/JSON; charset=utf-8"), 200),
        (("Host: evil.example", "Origin: http://evil.example", "Content-Type: text/plain"), 403),
        (("Host: LLM.example.com:443", JSON_LINE), 200),
        (("Host: evil.example", JSON_LINE), 403),
        (("Host: localhost", "Origin: http://evil.example", "Content-Type: text/plain"), 400),
        (("Host: localhost", "Content-Type: application/x-www-form-urlencoded"), 400),
        (("Host: localhost",), 400),
        (("Host: localhost", "Host: localhost", JSON_LINE), 400),
        ((JSON_LINE,), 400),
    ],
)
def test_no_web_page_may_talk_to_a_server_of_this_machine(
    server: RunningServer, headers: tuple[str, ...], status: int
) -> None:
    assert asked(server, *headers) == status
