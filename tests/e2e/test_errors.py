"""Everything that a client can get wrong: the status, the field that is named, and one form of body."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer, data_url, picture, until

IMAGE = data_url(picture(60, 60))
NATIVE, OPENAI, TOKENIZE = "/chat", "/v1/chat/completions", "/tokenize"
COMPLETE, DETOKENIZE = "/v1/completions", "/detokenize"


def native(**parameters: Any) -> dict[str, Any]:
    return {"inputs": [{"text": "Hi"}], "parameters": parameters}


def messages(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **fields}


def part(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": [{**fields}]}]}


JSON = {"content-type": "application/json"}
HUGE = 10**400  # an integer that no float holds
NUMBERS = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "n", "top_logprobs",
)  # fmt: skip
PARAMETERS = [
    ("temperature", -0.1), ("temperature", "0.5"), ("temperature", True), ("temperature", [1]),
    ("top_p", 0), ("top_p", 1.5), ("top_k", -2), ("top_k", 1.5), ("top_k", 1 << 40),
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", 10**30), ("max_tokens", "8"),
    ("seed", 1 << 63), ("seed", -(1 << 63) - 1), ("seed", 0.5),
    ("stop", ""), ("stop", ["a", ""]), ("stop", [1]), ("stop", {"a": 1}), ("stop", ["a"] * 17), ("stop", "a" * 1025),
    ("ignore_eos", "yes"), ("logprobs", 3), ("top_logprobs", 21), ("top_logprobs", -1), ("top_logprobs", 2),
    ("min_tokens", -1), ("min_tokens", 1.5), ("min_tokens", "3"), ("min_p", -0.1), ("min_p", 1.1),
    ("min_p", "0.1"), ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("presence_penalty", "1"),
    ("frequency_penalty", 2.1), ("frequency_penalty", -2.1), ("frequency_penalty", [1]), ("repetition_penalty", 0),
    ("repetition_penalty", 0.09), ("repetition_penalty", 10.1), ("repetition_penalty", -1), ("repetition_penalty", "1"),
    ("logit_bias", 3), ("logit_bias", [1]), ("logit_bias", {"a": 1}), ("logit_bias", {"-1": 1}),
    ("logit_bias", {"1.5": 1}),
    ("logit_bias", {"3": 100.1}), ("logit_bias", {"3": -101}), ("logit_bias", {"3": "1"}), ("logit_bias", {"3": None}),
    ("logit_bias", {"3": True}), ("logit_bias", {"3": 1, "03": 1}), ("logit_bias", {"99999999": 1}),
    ("logit_bias", {"3": HUGE}), ("logit_bias", {"3": -HUGE}), ("logit_bias", {str(HUGE): 1}),
    ("logit_bias", {"99999999999": 1}), ("logit_bias", {str(i): 1 for i in range(1025)}), ("logit_bias", {"\u0663": 1}),
    ("n", 0), ("n", -1), ("n", 9), ("n", 1.5), ("n", "2"), ("n", 10**30), ("stop_token_ids", 3),
    ("stop_token_ids", ["a"]), ("stop_token_ids", [-1]), ("stop_token_ids", [1.5]), ("stop_token_ids", [99999999]),
    ("stop_token_ids", [1] * 129), ("stop_token_ids", [1 << 40]), ("include_stop_str_in_output", 1),
    ("allowed_token_ids", 3), ("allowed_token_ids", []), ("allowed_token_ids", ["a"]), ("allowed_token_ids", [-1]),
    ("allowed_token_ids", [99999999]), ("allowed_token_ids", [1 << 40]), ("bad_words", "x"), ("bad_words", [""]),
    ("bad_words", [" "]), ("bad_words", [1]), ("bad_words", ["x"] * 129), ("bad_words", ["x" * 257]),
    ("skip_special_tokens", 0), ("skip_special_tokens", "no"),
    *((name, value) for name in NUMBERS for value in (HUGE, -HUGE)), ("stop_token_ids", [HUGE]),
]  # fmt: skip


@pytest.mark.parametrize("name", dict(PARAMETERS))
def test_a_bad_parameter_is_named(server: RunningServer, name: str) -> None:
    """The first value on both routes, the others by turns: both have their parameters read by one model."""
    values = [value for known, value in PARAMETERS if known == name]
    for i, value in enumerate([values[0], *values]):
        url, body, param = (
            (NATIVE, native(**{name: value}), f"parameters.{name}"),
            (OPENAI, messages(**{name: value}), name),
        )[i % 2]
        found = refused(server.http.post(url, json=body), 400)["param"]
        assert found in (param, f"{param}[0]"), value  # of a list the place is named too


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_what_is_no_finite_number_is_refused(server: RunningServer, name: str, number: str) -> None:
    raw = json.dumps(messages()).removesuffix("}") + f', "{name}": {number}}}'
    assert server.http.post(OPENAI, content=raw, headers=JSON).status_code == 400
    raw = json.dumps(native(x=1)).replace('"x": 1', f'"{name}": {number}')
    assert server.http.post(NATIVE, content=raw, headers=JSON).status_code == 400


PAST = "history[0].inputs[0].image"
OPTIONS = ("fps", "num_frames", "min_pixels", "max_pixels")

REFUSED: list[tuple[str, Any, str | None]] = [
    (NATIVE, native(temprature=1), "parameters.temprature"),
    (NATIVE, {"inputs": [{"text": "Hi"}], "parameters": 3}, "parameters"),
    (NATIVE, {"inputs": [{"text": "Hi"}], "stream": "yes"}, "stream"),
    (NATIVE, {"inputs": [{"text": "Hi"}], "max_tokens": 3}, "max_tokens"),
    (NATIVE, {"inputs": [{"text": "Hi"}], "model": 3}, "model"),
    (NATIVE, {}, "inputs"),
    (NATIVE, [], "inputs"),
    (NATIVE, [{"text": "Hi"}, {"picture": "x"}], "inputs[1]"),
    (NATIVE, [{"text": "Hi"}, {"image": IMAGE, "video": "x"}], "inputs[1]"),
    (NATIVE, [{"text": "Hi"}, {"text": "Hi"}, {"image": "data:image/png;base64,AAAA"}], "inputs[2].image"),
    (NATIVE, [{"image": "/etc/passwd"}], "inputs[0].image"),
    (NATIVE, [{"image": "data:image/png;base64,%%%%"}], "inputs[0].image"),
    (NATIVE, [{"audio": "data:audio/wav;base64,AAAA"}], "inputs[0].audio"),
    (NATIVE, [{"text": "Hi"}, *[{"image": IMAGE}] * 33], "inputs[33].image"),
    (NATIVE, {"inputs": [{"text": "x"}], "history": [{"inputs": [{"image": 3}], "text": "y"}]}, PAST),
    *((NATIVE, [{"video": "x", name: HUGE}], f"inputs[0].{name}") for name in OPTIONS),
    *((NATIVE, [{"image": IMAGE, name: HUGE}], f"inputs[0].{name}") for name in OPTIONS[2:]),
    (OPENAI, part(type="video_url", video_url={"url": "x", "fps": 1e-5}), "messages[1].content[0].video_url.fps"),
    (OPENAI, {}, "messages"),
    (OPENAI, {"messages": []}, "messages"),
    (OPENAI, {"messages": "Hi"}, "messages"),
    (OPENAI, {"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    (OPENAI, part(type="image_url", image_url={"url": "data:image/png;base64,AAAA"}), "messages[1].content[0]"),
    (OPENAI, part(type="image_url", image_url={}), "messages[1].content[0].image_url.url"),
    (OPENAI, part(type="picture", picture="x"), "messages[1].content[0]"),
    (OPENAI, messages(n=9), "n"),
    (OPENAI, messages(min_tokens=2), "min_tokens"),
    (NATIVE, native(min_tokens=9, max_tokens=8), "parameters.min_tokens"),
    (OPENAI, messages(n=10**9), "n"),
    (OPENAI, messages(max_completion_tokens=0), "max_completion_tokens"),
    (OPENAI, messages(stream="yes"), "stream"),
    (OPENAI, messages(stream=True, stream_options={"include_usage": 3}), "stream_options.include_usage"),
    (OPENAI, {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]}, "messages[1]"),
    (OPENAI, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
     "messages[0].tool_calls"),
    (OPENAI, messages(response_format={"type": "xml"}), "response_format.type"),
    (OPENAI, messages(tools=[{"type": "function"}]), "tools[0].function"),
    (OPENAI, messages(tool_choice="required"), "tool_choice"),
    (OPENAI, messages(model=3), "model"),
    (TOKENIZE, {"messages": 3}, "messages"),
    (TOKENIZE, {"inputs": [{"sound": "x"}]}, "inputs[0]"),
    (TOKENIZE, {"inputs": [{"image": "data:image/png;base64,AAAA"}]}, "inputs[0].image"),
    (NATIVE, "Hi", None),
]  # fmt: skip


@pytest.mark.parametrize(("url", "body", "param"), REFUSED)
def test_a_bad_request_names_its_field(server: RunningServer, url: str, body: Any, param: str | None) -> None:
    refused(server.http.post(url, json=body), 400, param)
    if url != TOKENIZE and isinstance(body, dict) and "stream" not in body:
        refused(server.http.post(url, json={**body, "stream": True}), 400, param)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"messages": [}', b"\xff\xfe", b'{"inputs": [{"text": "\\ud800"}]}'])
@pytest.mark.parametrize("url", [NATIVE, OPENAI, TOKENIZE, COMPLETE, DETOKENIZE])
def test_what_is_no_json_is_refused(server: RunningServer, url: str, raw: bytes) -> None:
    assert refused(server.http.post(url, content=raw, headers=JSON), 400)["code"] in ("invalid_json", None)


@pytest.mark.parametrize("url", [NATIVE, OPENAI, TOKENIZE, COMPLETE, DETOKENIZE])
def test_a_body_must_be_declared_as_json(server: RunningServer, url: str) -> None:
    """Else any web page could make a visitor's browser ask a server on its own machine."""
    good: dict[str, Any] = {
        OPENAI: messages(),
        COMPLETE: {"prompt": "Hi", "max_tokens": 1},
        DETOKENIZE: {"tokens": [5]},
    }
    body = json.dumps(good.get(url, {"inputs": [{"text": "Hi"}]}))
    for kind in (None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"):
        error = refused(server.http.post(url, content=body, headers={"content-type": kind} if kind else {}), 400)
        assert error["code"] == "unsupported_media_type" and "application/json" in error["message"]
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        assert server.http.post(url, content=body, headers={"content-type": kind}).status_code == 200


def test_an_unknown_field_of_openai_is_ignored(server: RunningServer) -> None:
    body = messages(user="me", metadata={"a": 1}, presence_penalty=0, n=1, tools=[], response_format={"type": "text"})
    assert server.http.post(OPENAI, json=body).status_code == 200


def test_a_model_is_known_by_its_root_too(server: RunningServer) -> None:
    """As vLLM's load tester names it where it asks for tokens."""
    (model,) = server.http.get("/v1/models").json()["data"]
    counted = server.http.post("/tokenize", json={"model": model["root"], "prompt": "a"})
    back = server.http.post(DETOKENIZE, json={"model": model["root"], "tokens": counted.json()["tokens"]})
    assert back.json() == {"prompt": "a"}
    answer = server.http.post(OPENAI, json=messages(model=model["root"], max_tokens=1))
    assert answer.json()["model"] == model["id"]


def test_an_unknown_model_and_route_are_not_found(server: RunningServer) -> None:
    for url, body in ((OPENAI, messages(model="m")), (NATIVE, {**native(), "model": "m"})):
        error = refused(server.http.post(url, json=body), 404, "model")
        assert error["code"] == "model_not_found"
    refused(server.http.get("/v1/models/m"), 404, "model")
    assert refused(server.http.get("/v2/models"), 404)["code"] == "route_not_found"
    assert refused(server.http.get("/redoc"), 404)
    answer = server.http.get("/chat")
    assert refused(answer, 405)["code"] == "method_not_allowed" and answer.headers["allow"] == "POST"


def test_a_large_body_is_refused_with_and_without_a_length(strict: RunningServer) -> None:
    before = strict.metric('mm_rejected_total{reason="body_too_large"}')
    big = json.dumps(native(stop="x" * (1 << 20)))
    chunks = (big[i : i + 65536].encode() for i in range(0, len(big), 65536))
    for content in (big, chunks):
        refused(strict.http.post(NATIVE, content=content, headers=JSON), 413)
    assert strict.metric('mm_rejected_total{reason="body_too_large"}') == before + 2
    assert strict.metric("mm_inflight_bytes") == 0
    assert strict.chat({"text": "Hi"}, max_tokens=1).status_code == 200


def test_too_many_requests_and_bodies_are_told_to_come_back(busy: RunningServer) -> None:
    before = busy.metric('request_success_total{finished_reason="abort"}')
    long = native(max_tokens=20000, ignore_eos=True)
    with httpx.stream("POST", f"{busy.url}{NATIVE}", json={**long, "stream": True}) as running:
        chunks = running.iter_raw()  # kept: an iterator that is dropped closes the connection
        next(chunks)
        answer = busy.http.post(NATIVE, json=native())
        assert refused(answer, 429)["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1
    until("the stream's end is noticed", lambda: busy.metric("num_requests_running") == 0)
    refused(busy.http.post(NATIVE, content=b"[" + b" " * (1 << 20) + b"]", headers=JSON), 429)
    assert busy.chat({"text": "Hi"}, max_tokens=1).status_code == 200
    assert busy.metric('request_success_total{finished_reason="abort"}') == before + 1


@pytest.fixture(scope="module")
def cramped(start: Start) -> Iterator[RunningServer]:
    """2 MiB of shared memory; 1 MiB for embeddings, which are those of 4096 tokens."""
    with start("--shm-mib", "2", "--embedding-mib", "1") as server:
        yield server


def test_media_that_the_engine_can_never_hold(cramped: RunningServer) -> None:
    """Each picture has 450 tokens. They are refused before any is decoded. The first test of this server."""
    image = data_url(picture(700, 500, kind="JPEG"))
    for url, chat, place in (
        (NATIVE, {"inputs": [{"image": image}] * 20}, "inputs[0]"),
        (OPENAI, part(type="image_url", image_url={"url": image}), "messages[1].content[0]"),
    ):
        if url == OPENAI:
            chat["messages"][1]["content"] *= 20
        error = refused(cramped.http.post(url, json=chat), 400)
        assert error["code"] == "media_too_large" and error["param"].startswith(place)
        assert " 4096" in error["message"] and " 9000 " in error["message"]
    assert cramped.metric('shm_segments{state="idle"}') == 0, "nothing was leased"
    assert cramped.chat({"image": image}, max_tokens=1).status_code == 200


def test_media_that_can_never_fit_and_do_not_fit_now(cramped: RunningServer) -> None:
    """The pool holds 2 MiB: one picture of 1200x900 has more, one of 700x500 fits alone."""
    never, once = data_url(picture(1200, 900, kind="JPEG")), data_url(picture(700, 500, kind="JPEG"))
    error = refused(cramped.chat({"text": "x"}, {"image": IMAGE}, {"image": never}), 400, "inputs[2].image")
    assert error["code"] == "media_too_large"
    assert cramped.chat({"image": once}, max_tokens=1).status_code == 200
    with ThreadPoolExecutor(8) as pool:
        chats = [pool.submit(cramped.chat, {"image": once}, max_tokens=1) for _ in range(8)]
    statuses = [chat.result().status_code for chat in chats]
    assert set(statuses) <= {200, 429} and 200 in statuses
    cramped.assert_nothing_held()


def test_every_answer_has_a_request_id(server: RunningServer) -> None:
    mine = server.http.get("/health/live", headers={"X-Request-Id": "mine-1.a"})
    assert mine.headers["x-request-id"] == "mine-1.a"
    for strange in (b"a b", b"x" * 65, b"a\tb", b"\xe9"):
        answer = server.http.get("/v2", headers={b"X-Request-Id": strange})
        assert re.fullmatch("[0-9a-f]{24}", answer.headers["x-request-id"])
    ids = {server.http.get("/health/live").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


def test_no_error_shows_paths_addresses_or_names(server: RunningServer) -> None:
    for url, body, _ in REFUSED:
        text = server.http.post(url, json=body).text
        assert "0x" not in text and "Traceback" not in text and str(server.root) not in text


def refused(answer: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    """The error of an answer that must be one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    if param is not None:
        assert error["param"] == param
    return error
