"""Clients of the service: what one answer was, many that ask on, and texts that belong to one replica."""

import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from deploy.ray.affinity import digest_of, order
from tests.deploy.ray.cluster import URL

PATH = "/v1/chat/completions"


class Answered(NamedTuple):
    """What a client got."""

    status: int
    text: str
    end: str  # why it ended, or the code of its error


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 16, **fields}


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def answered(http: httpx.Client, body: dict[str, Any]) -> Answered:
    """One chat, whole or streamed. Raises httpx's errors where the connection breaks."""
    if not body.get("stream"):
        answer = http.post(PATH, json=body)
        told = answer.json()
        if "error" in told:
            return Answered(answer.status_code, "", told["error"]["code"])
        (choice,) = told["choices"]
        return Answered(answer.status_code, choice["message"]["content"], choice["finish_reason"])
    text, end = "", ""
    with http.stream("POST", PATH, json=body) as response:
        for event in events(response):
            if "error" in event:
                return Answered(response.status_code, text, event["error"]["code"])
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
                end = choice["finish_reason"] or end
    return Answered(response.status_code, text, end)


class Asking:
    """A client for each body that asks it again and again, until all are told to stop."""

    def __init__(self, bodies: Sequence[dict[str, Any]], pause: float = 0.0) -> None:
        """pause: seconds between an answer and the next question."""
        self._pause = pause
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(len(bodies))
        self.answers: list[list[Answered]] = [[] for _ in bodies]
        self.slowest = 0.0  # seconds of an answer
        self._asking = [self._pool.submit(self._ask_on, *one) for one in zip(bodies, self.answers, strict=True)]

    def _ask_on(self, body: dict[str, Any], answers: list[Answered]) -> None:
        with httpx.Client(base_url=URL, timeout=120) as http:
            while not self._stop.wait(self._pause):
                begun = time.monotonic()
                answers.append(answered(http, body))
                self.slowest = max(self.slowest, time.monotonic() - begun)

    def all_have(self, n: int) -> bool:
        """Whether each client has so many answers. Raises what a client met."""
        for one in self._asking:
            if one.done():
                one.result()
        return all(len(answers) >= n for answers in self.answers)

    def stop(self) -> None:
        """Return once all are answered. Raises what a client met."""
        self._stop.set()
        for one in self._asking:
            one.result(150)

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._pool.shutdown()


class Looking:
    """A monitor that looks five times a second whether the service is ready, as a balancer in front of it does."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.bodies: list[tuple[int, str]] = []
        self._looking = self._pool.submit(self._look_on)

    def _look_on(self) -> None:
        with httpx.Client(base_url=URL, timeout=60) as http:
            while not self._stop.wait(0.2):
                answer = http.get("/health/ready")
                self.bodies.append((answer.status_code, answer.text[:200]))

    def __enter__(self) -> "Looking":
        return self

    def __exit__(self, *raised: object) -> None:
        """Raises what the monitor met."""
        self._stop.set()
        self._looking.result(90)
        self._pool.shutdown()


def texts_of(replica: str, replicas: Iterable[str]) -> Iterator[str]:
    """Texts that belong to a replica by their content."""
    for n in itertools.count():
        text = f"hello {n}"
        if order(digest_of([], json.dumps(chat(text)).encode()), [*replicas])[0] == replica:
            yield text


@contextmanager
def begun(text: str, n_tokens: int = 1200) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a long stream of which the first has come."""
    body = chat(text, stream=True, max_tokens=n_tokens, ignore_eos=True)
    with httpx.Client(base_url=URL, timeout=120) as http, http.stream("POST", PATH, json=body) as response:
        stream = events(response)
        assert next(stream)["choices"]
        yield stream
