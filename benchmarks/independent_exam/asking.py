"""Asks the questions of a row through a running server, some at once, and counts what is right."""

import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.independent_exam.question import Question, part_of
from benchmarks.independent_exam.rows import question
from benchmarks.independent_exam.scoring import wilson

MOST_TOKENS = 128  # a call of a tool takes 60 to 70 of this vocabulary
_BUSY = (429, 503)
_TRIES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one row. distinct: how many different conversations of words, media left out, were among them.

    parts: right and asked by look, timbre or kind of question.
    """

    row: str
    right: int
    asked: int
    distinct: int
    parts: Mapping[str, tuple[int, int]]

    def as_json(self) -> dict[str, Any]:
        """With the share and its 95 % interval, in percent."""
        low, high = wilson(self.right, self.asked)
        return {
            "row": self.row,
            "right": self.right,
            "asked": self.asked,
            "percent": round(100 * self.right / self.asked, 1),
            "interval": [round(100 * low, 1), round(100 * high, 1)],
            "distinct": self.distinct,
            "parts": {part: list(counts) for part, counts in sorted(self.parts.items())},
        }


def ask_row(http: httpx.Client, row: str, n: int, seed: int, at_once: int) -> Result:
    """Ask the first `n` questions of a row. Raises where the server refuses one or fails."""

    def one(number: int) -> tuple[Question, bool]:
        asked = question(row, number, seed)
        return asked, asked.rule.right(converse(http, asked))

    asked, right, words = Counter[str](), Counter[str](), set()
    with ThreadPoolExecutor(at_once) as pool:
        for found, is_right in pool.map(one, range(n)):
            asked[found.part] += 1
            right[found.part] += is_right
            words.add(found.turns)
    parts = {part: (right[part], asked[part]) for part in asked}
    return Result(row=row, right=right.total(), asked=n, distinct=len(words), parts=parts)


def converse(http: httpx.Client, asked: Question) -> dict[str, Any]:
    """Every turn in its order, with the model's own answers between them; the last answer."""
    history: list[dict[str, Any]] = []
    media = [part_of(medium) for medium in asked.media]
    answer: dict[str, Any] = {}
    for text in asked.turns:
        inputs = [*media, {"text": text}]
        body: dict[str, Any] = {
            "inputs": inputs,
            "history": history,
            "parameters": {"max_tokens": MOST_TOKENS, "temperature": 0},
        }
        if asked.tools:
            body |= {"tools": list(asked.tools), "tool_choice": "auto"}
        answer = _post(http, body)
        history, media = [*history, {"inputs": inputs, "text": answer["text"]}], []
    return answer


def _post(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    for _ in range(_TRIES):
        answer = http.post("/chat", json=body)
        if answer.status_code not in _BUSY:
            break
        time.sleep(float(answer.headers.get("Retry-After", 1)))
    if answer.status_code != 200:
        raise RuntimeError(f"the server answers {answer.status_code}: {answer.text[:500]}")
    found: dict[str, Any] = answer.json()
    return found
