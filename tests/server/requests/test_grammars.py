"""What was compiled or refused is known by content. The pool is a double: workers are processes."""

import asyncio
from typing import Any, cast

import pytest

from server.children.workers import WorkerDied, WorkerPool
from server.requests.admission import Admission
from server.requests.grammars import MOST_KNOWN, Grammars
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.chat.parts import RawPrompt
from tokenization.messages import Compile, Compiled, PrepareFailed
from tokenization.text.tokenizer import Tokenizer

REQUEST = ChatRequest(id="r", chat=RawPrompt(text="Hi"), chat_param="prompt")


class Pool:
    """Workers that die so often, and then compile all but "bad"."""

    leading_blanks = 1  # a tokenizer's

    def __init__(self, deaths: int = 0) -> None:
        self.deaths, self.asked = deaths, list[Compile]()

    async def begin(self, message: Compile, client: str) -> Any:
        self.asked.append(message)
        return self

    async def next(self) -> list[Any]:
        self.deaths -= 1
        if self.deaths >= 0:
            raise WorkerDied
        grammar = self.asked[-1].grammar
        if grammar.source in ("bad", "slow"):
            code = "structured_output" if grammar.source == "bad" else "took_too_long"
            return [PrepareFailed(request_id="r", kind="bad_request", message="no", code=code)]
        return [Compiled(request_id="r", grammar=CompiledGrammar(source=grammar.source))]

    def cancel(self, job: Any) -> None:
        """Nobody waits."""


def grammars(pool: Pool) -> Grammars:
    return Grammars(cast(WorkerPool, pool), cast(Tokenizer, pool), Admission(8, lambda: None))


def ask(known: Grammars, source: str, **fields: Any) -> CompiledGrammar:
    return asyncio.run(known.compiled(REQUEST, Grammar(kind="regex", source=source, param="x", **fields)))


def test_the_same_is_compiled_once_and_what_differs_again() -> None:
    pool = Pool()
    known = grammars(pool)
    for _ in range(3):
        assert ask(known, "a").source == "a"
    assert len(pool.asked) == 1
    ask(known, "a", strict=True)
    ask(known, "a", marks=(5,))
    assert len(pool.asked) == 3
    for i in range(MOST_KNOWN):
        ask(known, str(i))
    ask(known, "a")
    assert len(pool.asked) == 4 + MOST_KNOWN


def test_a_refusal_is_known_too_and_names_the_field() -> None:
    pool = Pool()
    known = grammars(pool)
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            ask(known, "bad")
        assert (caught.value.kind, caught.value.param, caught.value.code) == (
            "invalid_request", "x", "structured_output",
        )  # fmt: skip
    assert len(pool.asked) == 1


def test_what_took_too_long_is_tried_again() -> None:
    """The machine was busy, or short of memory: not the grammar need be why."""
    pool = Pool()
    known = grammars(pool)
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            ask(known, "slow")
        assert (caught.value.kind, caught.value.param) == ("invalid_request", "x")
    assert len(pool.asked) == 2


def test_a_second_worker_is_asked_and_no_third() -> None:
    assert ask(grammars(Pool(deaths=1)), "a").source == "a"
    pool = Pool(deaths=2)
    with pytest.raises(Refusal) as caught:
        ask(grammars(pool), "a")
    assert caught.value.kind == "invalid_request" and caught.value.param == "x" and len(pool.asked) == 2
