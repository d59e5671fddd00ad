"""A soak of the caches by content: chats whose beginnings and pictures come again, and what each answer must be."""

import random
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations, count
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.e2e.running import RunningServer, data_url, picture

CHAT = "/v1/chat/completions"
SIZES = ((448, 336), (336, 224), (448, 336), (672, 448))  # pictures of 192, 96, 192 and 384 tokens
SYSTEMS = tuple(f"You are helper {i}. " + "Look at the picture and describe what is in this image. " * 4 for i in "abc")
QUESTIONS = ("what is it?", "what colour is the picture? one, two or three words", "and what else?", "and in this one?")
SHOWN: dict[str, Any] = {
    "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": True, "top_logprobs": 2,
}  # fmt: skip
CLIENTS = 8
RECENT = 6  # stories that a repeated request is one of
REPEATED, SEVERAL, LEAVING = 0.5, 0.25, 0.1  # shares of requests: that repeat something, ask for 4 answers, leave
MARGIN, NEAR = 0.01, 1e-3  # between the two likeliest tokens, and between log-probabilities of one token
HWM = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class Token(NamedTuple):
    """One token of an answer."""

    text: tuple[int, ...]  # its bytes
    logprob: float
    margin: float  # to the second likeliest


Answer = tuple[Token, ...]
Body = dict[str, Any]


def stories(n: int) -> list[list[Body]]:
    """Four chats each over a picture of its own: a question, another, a second turn, one with a second picture.

    All stories ask the same under one of three system prompts, so that only the picture tells their answers apart.
    """
    urls = [data_url(picture(*SIZES[i % len(SIZES)], seed=i)) for i in range(n)]
    return [list(_chats(SYSTEMS[i % len(SYSTEMS)], urls[i], urls[(i + 1) % n])) for i in range(n)]


def _chats(system: str, one: str, other: str) -> Iterator[Body]:
    def user(text: str, url: str | None = None) -> dict[str, Any]:
        shown = [] if url is None else [{"type": "image_url", "image_url": {"url": url}}]
        return {"role": "user", "content": [*shown, {"type": "text", "text": text}]}

    first, second, third, fourth = QUESTIONS
    history = user(first, one), {"role": "assistant", "content": "red, green and blue pictures in a row."}
    for chat in ([user(first, one)], [user(second, one)], [*history, user(third)], [*history, user(fourth, other)]):
        yield {"messages": [{"role": "system", "content": system}, *chat], **SHOWN}


def read_answers(body: Any) -> list[Answer]:
    """The tokens of each choice."""
    return [tuple(map(_token, choice["logprobs"]["content"])) for choice in body["choices"]]


def _token(entry: Any) -> Token:
    best, second = (likely["logprob"] for likely in entry["top_logprobs"])
    return Token(text=tuple(entry["bytes"]), logprob=entry["logprob"], margin=best - second)


def difference(said: Sequence[Token], right: Sequence[Token]) -> str | None:
    """What is wrong with an answer; None where it is right up to a token that is not clear."""
    if len(said) != len(right):
        return f"{len(said)} tokens, not {len(right)}"
    for i, (one, other) in enumerate(zip(said, right, strict=True)):
        same = one.text == other.text
        if not same and other.margin > MARGIN:
            return f"token {i} differs, margin {other.margin:.4f}"
        if abs(one.logprob - other.logprob) > NEAR + (0.0 if same else MARGIN):
            return f"token {i}: log-probability {one.logprob:.6f}, not {other.logprob:.6f}"
        if not same:
            return None
    return None


def right_answers(server: RunningServer, asked: list[list[Body]]) -> list[list[Answer]]:
    """Of a server without caches, by story and chat. They must tell pictures of one size apart."""

    def ask(body: Body) -> Answer:
        found = server.http.post(CHAT, json=body)
        assert found.status_code == 200, found.text
        return read_answers(found.json())[0]

    with ThreadPoolExecutor(CLIENTS) as clients:
        right = list(clients.map(lambda story: [ask(body) for body in story], asked))
    alike = len(SIZES) * len(SYSTEMS)
    pairs = [pair for i in range(alike) for pair in combinations(right[i::alike], 2)]
    told = [difference(a, b) is not None for pair in pairs for a, b in zip(*pair, strict=True)]
    assert told.count(True) >= 0.99 * len(told), "an answer does not tell which picture it is of"
    return right


def peak_bytes(pids: Sequence[int]) -> int:
    """The most memory that any of these processes has had resident; 0 without one."""
    found = [0]
    for pid in pids:
        try:
            found += [int(kib) << 10 for kib in HWM.findall(Path(f"/proc/{pid}/status").read_text())]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return max(found)


@dataclass(slots=True, kw_only=True)
class Load:
    """Clients that ask until they are stopped, and what became of their requests. A block ends them."""

    server: RunningServer
    asked: list[list[Body]]
    right: list[list[Answer]]
    outcomes: Counter[str] = field(default_factory=Counter)  # requests: right, left, status 503; right choices
    wrong: list[str] = field(default_factory=list)
    furthest: float = 0.0  # between a log-probability and the right one, of right answers
    _recent: deque[int] = field(default_factory=lambda: deque([0], maxlen=RECENT))
    _fresh: "count[int]" = field(default_factory=lambda: count(1))
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> "Load":
        self._threads += [threading.Thread(target=self._client, args=(seed,)) for seed in range(CLIENTS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in self._threads), "a request has no end"

    def _client(self, seed: int) -> None:
        rng = random.Random(seed)
        with httpx.Client(base_url=self.server.url, timeout=60) as http:
            while not self._stopped.is_set():
                try:
                    self._request(http, rng)
                except httpx.HTTPError as error:
                    self.wrong.append(f"no answer: {error!r}")
                    self._stopped.wait(0.1)

    def _request(self, http: httpx.Client, rng: random.Random) -> None:
        with self._lock:
            if rng.random() < REPEATED:
                story, chat = rng.choice(self._recent), rng.randrange(4)
            else:
                story, chat = next(self._fresh) % len(self.asked), 0
                self._recent.append(story)
        body = {**self.asked[story][chat], "n": 4 if rng.random() < SEVERAL else 1}
        leaves = rng.random() < LEAVING
        try:
            patience = 0.002 * 100 ** rng.random() if leaves else 60.0
            found = http.post(CHAT, json=body, timeout=patience)
        except httpx.TimeoutException:
            if not leaves:
                raise
            self.outcomes["left"] += 1
            return
        if found.status_code == 503:
            self.outcomes["503"] += 1
            time.sleep(0.05)
            return
        if found.status_code != 200:
            self.wrong.append(f"{found.status_code}: {found.text}")
            return
        self._compare(story, chat, read_answers(found.json()))

    def _compare(self, story: int, chat: int, answers: list[Answer]) -> None:
        right = self.right[story][chat]
        with self._lock:
            for said in answers:
                if problem := difference(said, right):
                    self.wrong.append(f"story {story}, chat {chat}: {problem}")
                    continue
                self.outcomes["right"] += 1
                first = abs(said[0].logprob - right[0].logprob) if said[0].text == right[0].text else 0.0
                self.furthest = max(self.furthest, first)
