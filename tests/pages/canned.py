"""A server of the page whose answers are written here: it does for a model's."""

import json
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from server.http.openapi.document import openapi_document
from tests.e2e.running import REPO

MODEL = {
    "data": [{"id": "canned", "max_model_len": 4096, "architecture": {"input_modalities": ["text", "image", "audio"]}}]
}
USAGE = {"prompt_tokens": 7, "completion_tokens": 21, "timings": {"prefill": 1.0, "decode": 2.0}}


def stream(*events: dict[str, Any], **last: Any) -> str:
    """The events of an answer, and its last one, with what it has beside its usage."""
    told = [*events, {"usage": USAGE, **last}]
    return "".join(f"data: {json.dumps({'id': 'chat-1', **event})}\n\n" for event in told) + "data: [DONE]\n\n"


ANSWER = stream({"text": "words", "finish_reason": "stop"})
WRONG = {"error": {"message": "it went wrong", "type": "invalid_request_error", "param": "inputs", "code": None}}
MANY = 300  # tokens: who asks for so many gets each when it is written
BROKEN = f"data: {json.dumps({'id': 'chat-1', 'text': 'some words'})}\n\ndata: {json.dumps(WRONG)}\n\n"


class Handler(SimpleHTTPRequestHandler):
    """The files of the page, one model, and one answer to every question; at two addresses none."""

    asked: list[dict[str, Any]]

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.answer(json.dumps(MODEL), "application/json")
        elif self.path == "/openapi.json":
            self.answer(json.dumps(openapi_document("0")), "application/json")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.path == "/refused":
            return self.answer(json.dumps(WRONG), "application/json", 400)
        if self.path == "/broken":
            return self.answer(BROKEN, "text/event-stream")
        if self.asked[-1].get("parameters") == {"max_tokens": MANY}:
            return self.answer_slowly()
        timed = self.headers["X-Pixelferry-Timings"] == "1"
        self.answer(ANSWER if timed else ANSWER.replace("timings", "nothing"), "text/event-stream")

    def answer(self, text: str, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def answer_slowly(self) -> None:
        """As a model writes: a token after the other, each in a packet of its own."""
        self.answer("", "text/event-stream")
        for n in range(MANY):
            self.wfile.write(f"data: {json.dumps({'id': 'chat-1', 'text': f'word {n} '})}\n\n".encode())
            time.sleep(0.005)
        self.wfile.write(ANSWER.encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


Canned = tuple[str, list[dict[str, Any]]]


@pytest.fixture
def canned() -> Iterator[Canned]:
    """The page's address, and the bodies that it has sent."""
    asked: list[dict[str, Any]] = []
    kind = type("Recorder", (Handler,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, directory=REPO / "server" / "http" / "page")) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", asked
        server.shutdown()
        thread.join()
