"""Everything that a client can get wrong: the status, the field that is named, and one form of body."""

import gzip
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.e2e.running import RunningServer, data_url, picture, until
from tests.tables import each_of

pytestmark = pytest.mark.process

IMAGE = data_url(picture(60, 60))
NATIVE, OPENAI, TOKENIZE = "/chat", "/v1/chat/completions", "/tokenize"
COMPLETE, DETOKENIZE = "/v1/completions", "/detokenize"
ROUTES = (NATIVE, OPENAI, TOKENIZE, COMPLETE, DETOKENIZE)


def native(**parameters: Any) -> dict[str, Any]:
    return {"inputs": [{"text": "Hi"}], "parameters": parameters}


def messages(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **fields}


def part(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": [{**fields}]}]}


JSON = {"content-type": "application/json"}
HUGE = 10**400  # an integer that no float holds
# One of each kind of complaint: tests/server/requests/test_sampling_request.py has every value of every parameter.
PARAMETERS: list[tuple[str, Any]] = [
    ("temperature", -0.1), ("temperature", "0.5"), ("temperature", HUGE), ("top_k", 1.5), ("max_tokens", -HUGE),
    ("seed", 1 << 63), ("n", 9), ("stop", ["a", ""]), ("stop", {"a": 1}), ("ignore_eos", "yes"), ("top_logprobs", 2),
    ("logit_bias", {"a": 1}), ("logit_bias", {"3": HUGE}), ("logit_bias", {str(HUGE): 1}),
    ("logit_bias", {"99999999": 1}), ("logit_bias", {"\u0663": 1}), ("stop_token_ids", [1] * 129),
    ("stop_token_ids", [99999999]), ("allowed_token_ids", []), ("allowed_token_ids", [99999999]), ("bad_words", [" "]),
    ("bad_words", ["x" * 257]), ("skip_special_tokens", 0),
]  # fmt: skip


def test_a_bad_parameter_is_named(server: RunningServer) -> None:
    wrong = {}
    for name, value in PARAMETERS:
        for url, body, param in (
            (NATIVE, native(**{name: value}), f"parameters.{name}"),
            (OPENAI, messages(**{name: value}), name),
        ):
            answer = server.http.post(url, json=body)
            # Of a list the place is named too.
            if complaint(answer) not in ((400, param), (400, f"{param}[0]")):
                wrong[url, name, str(value)[:20]] = answer.text
    assert not wrong


def test_what_is_no_finite_number_is_refused(server: RunningServer) -> None:
    taken = []
    for name, number in product(("temperature", "top_p"), ("NaN", "Infinity", "-Infinity", "1e999")):
        openai = json.dumps(messages()).removesuffix("}") + f', "{name}": {number}}}'
        plain = json.dumps(native(x=1)).replace('"x": 1', f'"{name}": {number}')
        for url, raw in ((OPENAI, openai), (NATIVE, plain)):
            if server.http.post(url, content=raw, headers=JSON).status_code != 400:
                taken.append((url, name, number))
    assert not taken


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


def test_a_bad_request_names_its_field(server: RunningServer) -> None:
    """Alike as a stream; and no error shows paths, addresses or names."""
    wrong = []
    for url, body, param in REFUSED:
        for more in ({}, {"stream": True}):
            if more and (url == TOKENIZE or not isinstance(body, dict) or "stream" in body):
                continue
            answer = server.http.post(url, json={**body, **more} if more else body)
            status, found = complaint(answer)
            shows = [text for text in ("0x", "Traceback", str(server.root)) if text in answer.text]
            if status != 400 or shows or (param is not None and found != param):
                wrong.append((url, str(body)[:80], more, answer.text))
    assert not wrong


def test_what_is_no_json_is_refused(server: RunningServer) -> None:
    raws = [b"", b"{", b'{"messages": [}', b"\xff\xfe", b'{"inputs": [{"text": "\\ud800"}]}']
    wrong = []
    for url, raw in product(ROUTES, raws):
        answer = server.http.post(url, content=raw, headers=JSON)
        if complaint(answer)[0] != 400 or answer.json()["error"]["code"] not in ("invalid_json", None):
            wrong.append((url, raw, answer.text))
    assert not wrong


def test_a_body_must_be_declared_as_json(server: RunningServer) -> None:
    """Else any web page could make a visitor's browser ask a server on its own machine."""
    good: dict[str, Any] = {
        OPENAI: messages(),
        COMPLETE: {"prompt": "Hi", "max_tokens": 1},
        DETOKENIZE: {"tokens": [5]},
    }
    wrong = []
    undeclared = (None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp")
    for url, kind in product(ROUTES, (*undeclared, "application/json", "Application/JSON; charset=utf-8")):
        body = json.dumps(good.get(url, {"inputs": [{"text": "Hi"}]}))
        answer = server.http.post(url, content=body, headers={"content-type": kind} if kind else {})
        if kind not in undeclared:
            as_it_must = answer.status_code == 200
        else:
            error = answer.json()["error"]
            as_it_must = complaint(answer)[0] == 400 and error["code"] == "unsupported_media_type"
            as_it_must = as_it_must and "application/json" in error["message"]
        if not as_it_must:
            wrong.append((url, kind, answer.text))
    assert not wrong


@each_of("coding", ["gzip", "br", "deflate, gzip", "zstd", "x" * 300])
def test_a_compressed_body_is_refused_by_its_coding(server: RunningServer, coding: str) -> None:
    """RFC 9110, 15.5.16 and 12.5.3: a 415 with what would have been taken. A form is no other body."""
    raw = gzip.compress(json.dumps(messages()).encode())
    wrong, form = [], {"content-type": "multipart/form-data; boundary=b"}
    posted = [*ROUTES, "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/audio/transcriptions"]
    for url in posted:
        head = {**(form if "audio" in url else JSON), "content-encoding": coding}
        answer = server.http.post(url, content=raw, headers=head)
        error = answer.json()["error"]
        found = answer.status_code, error["param"], error["code"], answer.headers.get("accept-encoding")
        if found != (415, "Content-Encoding", "unsupported_encoding", "identity") or len(error["message"]) > 200:
            wrong.append((url, answer.text))
    assert not wrong
    for taken in ("identity", "Identity", "", "identity, identity"):
        assert server.http.post(OPENAI, json=messages(), headers={"content-encoding": taken}).status_code == 200


def test_a_model_without_a_name_is_the_one_that_is_served(server: RunningServer) -> None:
    text, anthropic = {"inputs": [{"text": "Hi"}]}, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for url, body in (
        (NATIVE, native(max_tokens=1)), (OPENAI, messages()), (TOKENIZE, text), (TOKENIZE, {"prompt": "a"}),
        (COMPLETE, {"prompt": "Hi", "max_tokens": 1}), (DETOKENIZE, {"tokens": [5]}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 1}), ("/v1/messages", anthropic),
        ("/v1/messages/count_tokens", anthropic),
    ):  # fmt: skip
        answer = server.http.post(url, json={**body, "model": ""})
        assert answer.status_code == 200, (url, answer.text)
        named = answer.json().get("model")
        assert named == server.http.get("/v1/models").json()["data"][0]["id"] or named is None, url


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


def test_a_large_body_is_refused_with_and_without_a_length(small: RunningServer) -> None:
    before = small.metric('mm_rejected_total{reason="body_too_large"}')
    big = json.dumps(native(stop="x" * (1 << 20)))
    chunks = (big[i : i + 65536].encode() for i in range(0, len(big), 65536))
    for content in (big, chunks):
        refused(small.http.post(NATIVE, content=content, headers=JSON), 413)
    assert small.metric('mm_rejected_total{reason="body_too_large"}') == before + 2
    assert small.metric("mm_inflight_bytes") == 0
    assert small.chat({"text": "Hi"}, max_tokens=1).status_code == 200


def test_too_many_requests_are_told_to_come_back(small: RunningServer) -> None:
    """One body of eight prompts has all places. Bodies: tests/e2e/test_hostile_connections.py."""
    before = small.metric('request_success_total{finished_reason="abort"}')
    long = {"prompt": [[1]] * 8, "max_tokens": 9000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{small.url}{COMPLETE}", json=long) as running:
        chunks = running.iter_raw()  # kept: an iterator that is dropped closes the connection
        next(chunks)
        answer = small.http.post(NATIVE, json=native())
        assert refused(answer, 429)["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1
    until("the stream's end is noticed", lambda: small.metric("num_requests_running") == 0)
    assert small.chat({"text": "Hi"}, max_tokens=1).status_code == 200
    assert small.metric('request_success_total{finished_reason="abort"}') == before + 8


def test_media_that_the_engine_can_never_hold(small: RunningServer) -> None:
    """Each picture has 450 tokens. They are refused before any is decoded."""
    decoded = 'mm_preprocess_seconds_count{modality="image",stage="decode"}'
    before = small.metric(decoded)
    file = io.BytesIO()
    Image.new("RGB", (700, 500), "teal").save(file, "PNG")  # of few bytes, for twenty of them are one body
    image = data_url(file.getvalue())
    for url, chat, place in (
        (NATIVE, {"inputs": [{"image": image}] * 20}, "inputs[0]"),
        (OPENAI, part(type="image_url", image_url={"url": image}), "messages[1].content[0]"),
    ):
        if url == OPENAI:
            chat["messages"][1]["content"] *= 20
        error = refused(small.http.post(url, json=chat), 400)
        assert error["code"] == "media_too_large" and error["param"].startswith(place)
        assert " 4096" in error["message"] and " 9000 " in error["message"]
    assert small.metric(decoded) == before
    assert small.chat({"image": image}, max_tokens=1).status_code == 200 and small.metric(decoded) == before + 1


def test_media_that_can_never_fit_and_do_not_fit_now(small: RunningServer) -> None:
    """The pool holds 2 MiB: one picture of 1200x900 has more, one of 700x500 fits alone."""
    never, once = (data_url(picture(*size, kind="JPEG", seed=9)) for size in ((1200, 900), (700, 500)))
    error = refused(small.chat({"text": "x"}, {"image": IMAGE}, {"image": never}), 400, "inputs[2].image")
    assert error["code"] == "media_too_large"
    assert small.chat({"image": once}, max_tokens=1).status_code == 200
    pictures = [data_url(picture(700, 500, seed=seed, kind="JPEG")) for seed in range(10, 18)]
    with ThreadPoolExecutor(8) as pool:
        chats = [pool.submit(small.chat, {"image": one}, max_tokens=1) for one in pictures]
    statuses = [chat.result().status_code for chat in chats]
    assert set(statuses) <= {200, 429} and 200 in statuses
    small.assert_nothing_held()


def test_every_answer_has_a_request_id(server: RunningServer) -> None:
    mine = server.http.get("/health/live", headers={"X-Request-Id": "mine-1.a"})
    assert mine.headers["x-request-id"] == "mine-1.a"
    for strange in (b"a b", b"x" * 65, b"a\tb", b"\xe9"):
        answer = server.http.get("/v2", headers={b"X-Request-Id": strange})
        assert re.fullmatch("[0-9a-f]{24}", answer.headers["x-request-id"])
    ids = {server.http.get("/health/live").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


def complaint(answer: httpx.Response) -> tuple[int, str | None]:
    """Its status, and what its error names; an answer that is no error of ours has no status here."""
    body = answer.json()
    if answer.headers["content-type"] != "application/json" or "error" not in body:
        return 0, None
    error = body["error"]
    as_told = set(error) == {"message", "type", "param", "code"} and error["message"]
    return answer.status_code if as_told else 0, error["param"]


def refused(answer: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    """The error of an answer that must be one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    if param is not None:
        assert error["param"] == param
    return error
