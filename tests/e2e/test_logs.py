"""The id of an answer finds its line, whatever the answer was; and no line holds what was sent."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, LONG, LongStream, recovered
from tests.e2e.running import RunningServer, data_url, picture, until
from tests.e2e.sent_secrets import JSON, SECRET

pytestmark = pytest.mark.process

ID = re.compile(r"\(request ([0-9a-f]{24})\)")


@pytest.fixture(scope="module")
def silent(start: Start) -> Iterator[RunningServer]:
    """A server whose good answers leave no line. Its engine may be killed."""
    with start(
        "--workers", "1", "--no-access-log", "--max-body-mib", "1", "--max-requests", "2", "--max-seqs", "2"
    ) as server:
        yield server


def line_of(server: RunningServer, request_id: str) -> str:
    """The one access line with that id of ours, or of the client's."""

    def found() -> list[str]:
        return [line for line in server.err.splitlines() if request_id in line and "pixelferry.access" in line]

    (line,) = until("its line", found)
    return str(line)


def client_errors(server: RunningServer) -> dict[str, httpx.Response]:
    """An answer of each kind that a client can cause, by what its line must say."""
    http, chat, completions = server.http, "/chat", "/v1/chat/completions"
    said = [{"role": "user", "content": "Hi"}]
    return {
        "POST /chat 400 error=invalid_json": http.post(chat, content=b"{", headers=JSON),
        "POST /chat 400 error=unknown_field": http.post(chat, json={"inputs": [{"text": "Hi"}], SECRET: 1}),
        "POST /v1/chat/completions 400 error=invalid_request": http.post(completions, json={"messages": []}),
        "POST /v1/chat/completions 404 error=model_not_found": http.post(
            completions, json={"messages": said, "model": SECRET}
        ),
        "POST /tokenize 400 error=invalid_json": http.post("/tokenize", content=SECRET.encode(), headers=JSON),
        "GET /v1/models/{name} 404 error=model_not_found": http.get(f"/v1/models/{SECRET}"),
        "GET /nowhere 404 error=route_not_found": http.get("/nowhere", params={"key": SECRET}),
        "GET /chat 405 error=method_not_allowed": http.get(chat),
        "POST /chat 413 error=body_too_large": http.post(chat, content=b" " * (1 << 20 | 1)),
    }


def test_each_client_error_is_found_by_its_id_without_access_lines(silent: RunningServer) -> None:
    assert silent.chat(**GREEDY).status_code == 400
    for expected, answer in client_errors(silent).items():
        call, _, error = expected.rpartition(" ")
        line = line_of(silent, answer.headers["x-request-id"])
        assert f" WARNING server[{silent.pid}] pixelferry.access: {call} " in line, line
        assert f" {error}" in line and " client=127.0.0.1:" in line
        method, route, status = call.split()
        assert silent.metric(f'http_requests_total{{method="{method}",route="{route}",status="{status}"}}'.replace(
            "/nowhere", "unknown"
        )) >= 1  # fmt: skip
        assert silent.metric(f'mm_rejected_total{{reason="{error.removeprefix("error=")}"}}') >= 1
    assert silent.chat({"text": "Hi"}, **GREEDY).status_code == 200
    assert " 200 " not in silent.err


def test_the_clients_own_id_finds_it_too(silent: RunningServer) -> None:
    silent.http.get("/nowhere", headers={"x-request-id": "theirs-2"})
    assert re.search(r" request_id=[0-9a-f]{24} x_request_id=theirs-2 ", line_of(silent, "theirs-2"))


@pytest.mark.parametrize("stream", [False, True])
def test_the_line_of_several_prompts_counts_them_all(server: RunningServer, stream: bool) -> None:
    body = {"prompt": ["one", [5, 6, 7]], "max_tokens": 3, "ignore_eos": True, "stream": stream}
    answer = server.http.post("/v1/completions", json=body)
    n_prompt = server.http.post("/tokenize", json={"prompt": "one"}).json()["count"] + 3
    line = line_of(server, answer.headers["x-request-id"])
    assert "POST /v1/completions 200 " in line and " first_token_seconds=" in line
    assert f" prompt_tokens={n_prompt} generation_tokens=6" in line


def test_the_line_of_a_prompt_that_is_only_scored_counts_no_token(server: RunningServer) -> None:
    """The engine computes one more than the client gets, which no figure tells."""
    before = server.metric("generation_tokens_total")
    body = {"prompt": "one", "max_tokens": 0, "echo": True, "logprobs": 1}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.json()["usage"]["completion_tokens"] == 0
    assert " generation_tokens=0" in line_of(server, answer.headers["x-request-id"])
    assert server.metric("generation_tokens_total") == before


def test_a_misspelt_field_of_openais_is_found_in_the_log(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temprature": 0}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    request_id = answer.headers["x-request-id"]
    line = f"request {request_id}: nothing reads the field 'temprature'; did you mean 'temperature'?"
    until("the log tells it", lambda: line in server.err)


def test_the_way_to_openais_routes_is_told(server: RunningServer) -> None:
    for path in ("/chat/completions", "/completions", "/models"):
        answer = server.http.post(path, json={})
        assert answer.json()["error"]["message"] == f"no route {path!r} here; did you mean '/v1{path}'?"


def test_a_full_queue_and_a_killed_engine_are_found_by_their_ids(silent: RunningServer) -> None:
    with ThreadPoolExecutor(2) as pool:
        stream = LongStream(silent)
        body = {"inputs": [{"text": "Hi"}], "parameters": LONG}
        inside = pool.submit(lambda: httpx.post(f"{silent.url}/chat", json=body, timeout=60))
        until("both are inside", lambda: silent.metric("num_requests_running") == 2)
        full = silent.chat({"text": "Hi"})
        assert full.status_code == 429
        os.kill(silent.children("engine")[0], signal.SIGKILL)
        probe = until("not ready", lambda: (a := silent.http.get("/health/ready")).status_code == 503 and a)
        (event,) = [event for event in stream.ended() if "error" in event]
        refused = inside.result()
    assert " 429 " in line_of(silent, full.headers["x-request-id"])
    line = line_of(silent, found(ID, event["error"]["message"]))
    assert " ERROR " in line and "POST /chat 200 " in line and "error=engine_died" in line
    assert "prompt_tokens=" in line and "generation_tokens=" in line and "first_token_seconds=" in line
    line = line_of(silent, found(ID, refused.json()["error"]["message"]))
    assert " ERROR " in line and "POST /chat 503 " in line and "error=engine_died" in line
    assert "error=engine_down" in line_of(silent, found(ID, probe.json()["error"]["message"]))
    assert silent.metric('mm_rejected_total{reason="engine_died"}') == 2
    recovered(silent)


def found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    assert match, text
    return match[1]


def test_good_answers_leave_one_line_and_probes_none(server: RunningServer) -> None:
    before = len(server.err)
    sent = {"inputs": [{"image": data_url(picture(60, 60))}, {"text": "Hi"}], "parameters": {"max_tokens": 3}}
    answer = server.http.post("/chat", json=sent)
    line = line_of(server, answer.headers["x-request-id"])
    used = answer.json()["usage"]
    assert f"prompt_tokens={used['prompt_tokens']} generation_tokens={used['completion_tokens']}" in line
    for url in ("/health/live", "/health/ready", "/metrics"):
        assert server.http.get(url).status_code == 200
    later = server.err[before:]  # where a request of an earlier test may still end
    assert later.count(answer.headers["x-request-id"]) == 1
    assert not any(url in later for url in ("/health", "/metrics"))
