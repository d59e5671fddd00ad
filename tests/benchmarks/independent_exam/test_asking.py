"""How questions reach a server, and how its answers are counted: a server that always says the same."""

import json
from typing import Any

import httpx
import pytest

from benchmarks.independent_exam.__main__ import table
from benchmarks.independent_exam.asking import Result, ask_row, converse
from benchmarks.independent_exam.other_rows import COUNT
from benchmarks.independent_exam.question import Question
from benchmarks.independent_exam.rows import question
from benchmarks.independent_exam.scoring import Number, Says

pytestmark = pytest.mark.slow


class Talker:
    """Answers "Hello!" to all that it is asked, and keeps that. busy: so many times it has no time first."""

    def __init__(self, busy: int = 0, status: int = 200) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.busy = busy
        self.status = status
        self.http = httpx.Client(base_url="http://talker", transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.busy:
            self.busy -= 1
            return httpx.Response(429, headers={"Retry-After": "0"})
        self.bodies.append(json.loads(request.content))
        return httpx.Response(self.status, json={"text": "Hello!", "boxes": []})


def test_a_row_is_counted_by_its_rules() -> None:
    talker = Talker()
    result = ask_row(talker.http, "small talk", 60, 5, at_once=2)
    wanted = [question("small talk", n, 5) for n in range(60)]
    greetings = sum(one.part == "greeting" for one in wanted)
    assert (result.right, result.asked, len(talker.bodies)) == (greetings, 60, 60)
    assert result.parts["greeting"] == (greetings, greetings) and result.parts["thanks"][0] == 0
    assert result.distinct == len({one.turns for one in wanted})


def test_a_second_turn_carries_the_first_and_its_answer() -> None:
    talker = Talker()
    asked = Question(part="", turns=("One?", "Two?"), rule=Number(n=1), tools=(COUNT,))
    assert converse(talker.http, asked)["text"] == "Hello!"
    first, second = talker.bodies
    assert first["inputs"] == [{"text": "One?"}] and first["history"] == []
    assert second["inputs"] == [{"text": "Two?"}]
    assert second["history"] == [{"inputs": [{"text": "One?"}], "text": "Hello!"}]
    assert second["tools"] == [COUNT] and second["tool_choice"] == "auto"


def test_a_busy_server_is_asked_again_and_a_fault_ends_the_exam() -> None:
    asked = Question(part="", turns=("One?",), rule=Says(pattern="hello"))
    assert converse(Talker(busy=3).http, asked)["text"] == "Hello!"
    with pytest.raises(RuntimeError, match="answers 500"):
        converse(Talker(status=500).http, asked)


def test_the_table_has_share_and_interval() -> None:
    row = Result(row="box", right=81, asked=263, distinct=9, parts={"flat": (81, 263)}).as_json()
    assert table([row]).splitlines()[2] == "| box | 81 | 263 | 30.8 | 25.5 to 36.6 | flat 81/263 |"
