"""Refusals as HTTP says them, and one form of body for whatever else ends a request."""

import asyncio
import re
from typing import get_args

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from server.http import errors
from server.http.errors import body_of, error_response, headers_of, status_of
from server.http.validation import param_of
from server.requests.refusal import (
    Refusal,
    RefusalKind,
    body_too_large,
    encoded_body,
    forbidden,
    head_too_large,
    internal,
    invalid_request,
    not_found,
    overloaded,
    timed_out,
    unauthorized,
    unavailable,
)
from tests.server.http.exchanges import surrounded
from tests.tables import each_of
from tokenization.chat.errors import ChatError

CLIENTS: list[tuple[Refusal, int, str]] = [
    (invalid_request("no", "messages[0]", "odd"), 400, "invalid_request_error"),
    (unauthorized("no"), 401, "invalid_request_error"),
    (forbidden("no", "host_not_allowed"), 403, "invalid_request_error"),
    (not_found("no", "model", "model_not_found"), 404, "invalid_request_error"),
    (timed_out("no", "body_timeout"), 408, "invalid_request_error"),
    (body_too_large(3), 413, "invalid_request_error"),
    (encoded_body("gzip"), 415, "invalid_request_error"),
    (head_too_large(3), 431, "invalid_request_error"),
    (overloaded("no", "queue_full"), 429, "rate_limit_error"),
]
OURS: list[tuple[Refusal, int, str]] = [
    (internal("no"), 500, "server_error"),
    (unavailable("no", "stopping"), 503, "server_error"),
]


def ask(method: str, path: str) -> httpx.Response:
    """The answer of an app whose routes fail in every way, to the request "mine"."""
    app = Starlette()
    errors.install(app)

    async def refusal(_: Request) -> Response:
        raise overloaded("the queue is full", "queue_full", retry_after=2.5)

    async def chat_error(_: Request) -> Response:
        raise ChatError("a path is needed", "inputs[1].image")

    async def anthropics(_: Request) -> Response:
        raise overloaded("the queue is full", "queue_full")

    async def http(request: Request) -> Response:
        raise HTTPException(request.path_params["status"], "a word", {"x-own": "kept"})

    app.add_route("/refusal", refusal)
    app.add_route("/chat-error", chat_error)
    app.add_route("/v1/messages/refusal", anthropics)
    app.add_route("/http/{status:int}", http)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=surrounded(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, headers={"x-request-id": "mine"})

    return asyncio.run(send())


def test_the_id_in_anthropics_form_is_that_of_the_headers() -> None:
    """Its SDK takes the one, and people search logs for the other."""
    answer = ask("GET", "/v1/messages/refusal")
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == answer.json()["request_id"] == "mine"


def test_every_kind_of_refusal_is_tried_here() -> None:
    assert {error.kind for error, _, _ in CLIENTS + OURS} == set(get_args(RefusalKind))


@each_of(("error", "status", "kind"), CLIENTS)
def test_what_a_client_can_change_is_told_as_it_stands(error: Refusal, status: int, kind: str) -> None:
    body = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    assert (status_of(error), body_of(error, "mine")) == (status, {"error": body})


@each_of(("error", "status", "kind"), OURS)
def test_what_is_our_fault_is_told_with_the_id_of_the_request(error: Refusal, status: int, kind: str) -> None:
    body = {"message": "no (request mine)", "type": kind, "param": None, "code": error.code}
    assert (status_of(error), body_of(error, "mine")) == (status, {"error": body})


@each_of(("seconds", "said"), [(-1.0, "1"), (0.0, "1"), (0.2, "1"), (1.0, "1"), (1.01, "2"), (30, "30"), (59.5, "60")])
def test_retry_after_is_whole_seconds_and_never_too_few(seconds: float, said: str) -> None:
    for error in (overloaded("no", "a", seconds), unavailable("no", "b", seconds)):
        assert headers_of(error) == {"retry-after": said}


@each_of("error", [invalid_request("no"), not_found("no"), body_too_large(3), internal("no")])
def test_what_will_not_pass_by_itself_names_no_time(error: Refusal) -> None:
    assert headers_of(error) == {}


def test_an_error_answer_has_all_three_parts() -> None:
    answer = error_response(unavailable("no", "stopping", 7), "mine")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert answer.headers["content-type"] == "application/json" and b'"no (request mine)"' in answer.body


def test_paths_of_fields() -> None:
    assert param_of(("messages", 1, "content", 3)) == "messages[1].content[3]"
    assert param_of(("parameters", "top_p")) == "parameters.top_p"
    assert param_of(()) == ""


def test_a_refusal_inside_a_route_is_its_answer() -> None:
    answer = ask("GET", "/refusal")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    expected = {"message": "the queue is full", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    assert answer.json() == {"error": expected}


def test_a_chat_that_cannot_be_answered_is_a_400_that_names_its_field() -> None:
    answer = ask("GET", "/chat-error")
    expected = {
        "message": "a path is needed", "type": "invalid_request_error", "param": "inputs[1].image", "code": None,
    }  # fmt: skip
    assert (answer.status_code, answer.json()) == (400, {"error": expected})


def test_a_route_that_is_not_there_is_a_404_with_a_code() -> None:
    answer = ask("GET", "/v2/nothing")
    expected = {
        "message": "no route '/v2/nothing' here", "type": "invalid_request_error", "param": None,
        "code": "route_not_found",
    }  # fmt: skip
    assert (answer.status_code, answer.json()) == (404, {"error": expected})


@each_of("path", ["/v1/refusal", "/refusals", "/llm/refusal"])
def test_a_route_that_is_nearly_there_is_named(path: str) -> None:
    answer = ask("GET", path)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"no route {path!r} here; did you mean '/refusal'?"


@each_of("path", ["/v1/responses/resp_1", "/v1/embeddings", "/v1/audio/speech", "/v1/files/file-1/content"])
def test_a_route_of_openai_that_is_not_here_is_a_400(path: str) -> None:
    """After one 404 a LiteLLM proxy turned all chats to 429."""
    answer = ask("POST", path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], path in error["message"]) == (400, "route_not_supported", True)
    for other in ("/v1", "/v1/", "/v1/nothing", "/embeddings", path.removeprefix("/v1") + "/v1", "/v1/embedding"):
        assert ask("POST", other).status_code == 404


def test_a_method_that_a_route_does_not_take_is_a_405_with_a_code() -> None:
    answer = ask("DELETE", "/refusal")
    expected = {
        "message": "DELETE is not allowed on '/refusal'", "type": "invalid_request_error", "param": None,
        "code": "method_not_allowed",
    }  # fmt: skip
    assert (answer.status_code, answer.json()) == (405, {"error": expected})
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


@each_of(
    ("status", "message", "kind"),
    [(418, "a word", "invalid_request_error"), (502, r"a word \(request [0-9a-f]{24}\)", "server_error")],
)
def test_other_errors_of_the_framework_have_our_form(status: int, message: str, kind: str) -> None:
    answer = ask("GET", f"/http/{status}")
    assert (answer.status_code, answer.headers["x-own"]) == (status, "kept")
    error = answer.json()["error"]
    assert re.fullmatch(message, error.pop("message"))
    assert error == {"type": kind, "param": None, "code": None}


def test_a_401_says_how_to_log_in() -> None:
    assert headers_of(unauthorized("no")) == {"www-authenticate": "Bearer"}
    assert body_of(unauthorized("no"), "r")["error"]["code"] == "invalid_api_key"


def test_a_clients_words_are_clipped_wherever_an_error_is_rendered() -> None:
    """A key of 20 MiB once came back as 38 MB."""
    words = "\x01\x7f" * (10 << 20)
    body = body_of(invalid_request(words, words, "odd"), "r1")["error"]
    assert len(body["message"]) == 1003 and len(body["param"]) == 203
    assert len(bytes(error_response(invalid_request(words, words), "r1").body)) < 1500
    answer = ask("GET", "/" + "%01" * 20000)
    assert answer.status_code == 404 and len(answer.content) < 500
