"""What fault tests have in common: requests that are inside when it happens, and what must be true afterwards."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx

from tests.e2e.running import RunningServer, data_url, picture, until

GREEDY: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
SHOWN: dict[str, Any] = {**GREEDY, "logprobs": True}
LONG: dict[str, Any] = {"max_tokens": 30000, "temperature": 0, "ignore_eos": True}
LARGE = data_url(picture(1600, 1200, kind="JPEG"))
SMALL = data_url(picture(90, 60))


class LongStream:
    """A stream that is read in a thread, from its first token until it ends."""

    def __init__(self, server: RunningServer, *inputs: dict[str, str]) -> None:
        self.text = ""
        self.status = 0
        self.broken = False  # the connection ended before the answer did
        body = {"inputs": [*inputs, {"text": "Hi"}], "parameters": LONG, "stream": True}
        self._thread = threading.Thread(target=self._read, args=(server.url, body))
        self._thread.start()
        until("the stream has a token", lambda: self.text.count("data: ") > 1)

    def _read(self, url: str, body: dict[str, Any]) -> None:
        try:
            with httpx.stream("POST", f"{url}/chat", json=body, timeout=60) as answer:
                self.status = answer.status_code
                for text in answer.iter_text():
                    self.text += text
        except httpx.RemoteProtocolError:
            self.broken = True

    def ended(self) -> list[Any]:
        """Wait for its end; its events."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return [json.loads(line[6:]) for line in self.text.split("\n") if line.startswith("data: {")]


def later(pool: ThreadPoolExecutor, server: RunningServer, *inputs: dict[str, Any]) -> "Future[httpx.Response]":
    """Over connections that are there: to make a client for each request takes longer than its answer."""
    return pool.submit(server.chat, *inputs, **GREEDY)


def recovered(server: RunningServer) -> None:
    until("ready again", lambda: server.ready() == 200)
    assert server.chat({"image": SMALL}, **GREEDY).status_code == 200
    server.assert_nothing_held()


def in_order(server: RunningServer) -> Iterator[RunningServer]:
    """What a fixture of a server that several tests of faults share does: it is ready and holds nothing, both times."""
    _at_rest(server)
    yield server
    _at_rest(server)


def _at_rest(server: RunningServer) -> None:
    until("ready", lambda: server.ready() == 200)
    server.assert_nothing_held()


def chat_body(*inputs: dict[str, str], stream: bool = False) -> dict[str, Any]:
    return {"inputs": [*inputs, {"text": "Hi"}], "parameters": LONG, "stream": stream}


def shown(*inputs: dict[str, str]) -> dict[str, Any]:
    """A chat whose answer shows its tokens."""
    return {"inputs": list(inputs), "parameters": SHOWN}


def tokens(answer: httpx.Response) -> list[bytes]:
    """The sampled tokens of a chat with SHOWN."""
    assert answer.status_code == 200, answer.text
    return [bytes(entry["bytes"]) for entry in answer.json()["logprobs"]["content"]]
