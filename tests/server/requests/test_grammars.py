"""What was compiled or refused is known by content. The pool is a double: workers are processes."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from server.children.workers import WorkerDied, WorkerPool
from server.request_context import RequestContext
from server.requests.grammars import MOST_BYTES, MOST_KNOWN, Grammars
from server.requests.refusal import Refusal
from server.requests.request import CacheSalts, ChatRequest
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.chat.parts import RawPrompt
from tokenization.messages import Compile, Compiled, PrepareFailed
from tokenization.text.tokenizer import Tokenizer

REQUEST = ChatRequest(id="r", chat=RawPrompt(text="Hi"), chat_param="prompt")
SALTS = CacheSalts("key")


class Pool:
    """Workers that die so often, and then compile all but "bad"; those that wait go on when they are let."""

    leading_blanks = 1  # a tokenizer's

    def __init__(self, deaths: int = 0, *, wait: bool = False) -> None:
        self.deaths, self.asked, self.clients, self.n_cancelled = deaths, list[Compile](), list[str](), 0
        self.goes_on = asyncio.Event()
        if not wait:
            self.goes_on.set()

    async def begin(self, message: Compile, client: str) -> Any:
        self.asked.append(message)
        self.clients.append(client)
        return self

    async def next(self) -> list[Any]:
        await self.goes_on.wait()
        self.deaths -= 1
        if self.deaths >= 0:
            raise WorkerDied
        grammar = self.asked[-1].grammar
        if grammar.source in ("bad", "slow"):
            code = "structured_output" if grammar.source == "bad" else "took_too_long"
            return [PrepareFailed(request_id="r", kind="bad_request", message="no", code=code)]
        if grammar.source == "no fork":
            return [PrepareFailed(request_id="r", kind="unavailable", message="no process is left")]
        return [Compiled(request_id="r", grammar=CompiledGrammar(source=grammar.source))]

    def cancel(self, job: Any) -> None:
        self.n_cancelled += 1


def grammars(pool: Pool, salts: CacheSalts = SALTS) -> Grammars:
    return Grammars(cast(WorkerPool, pool), cast(Tokenizer, pool), salts)


def ask(known: Grammars, source: str, request: ChatRequest = REQUEST, **fields: Any) -> CompiledGrammar:
    return asyncio.run(known.compiled(request, Grammar(kind="regex", source=source, param="x", **fields)))


def of(key: str, **fields: Any) -> ChatRequest:
    return replace(REQUEST, context=RequestContext(key=key, client=key), **fields)


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


def test_a_client_with_very_many_forms_displaces_its_own_alone() -> None:
    """By number and by size."""
    pool = Pool()
    known = grammars(pool)
    large = "x" * (MOST_BYTES // 4)
    for source in ("a", large):
        ask(known, source, of("alice"))
    for source in (*map(str, range(2 * MOST_KNOWN)), *(f"{i}{large}" for i in range(8))):
        ask(known, source, of("bob"))
    n = len(pool.asked)
    for source, key in (("a", "alice"), (large, "alice"), (f"7{large}", "bob")):
        ask(known, source, of(key))
    assert len(pool.asked) == n
    ask(known, "0", of("bob"))
    assert len(pool.asked) == n + 1


def test_a_form_is_of_the_client_that_asked_for_it_last() -> None:
    """Where clients share what is known: those of one that others use are not displaced as its own."""
    pool = Pool()
    known = grammars(pool, CacheSalts("server"))
    ask(known, "a", of("bob"))
    ask(known, "a", of("alice"))
    for i in range(2 * MOST_KNOWN):
        ask(known, str(i), of("bob"))
    n = len(pool.asked)
    ask(known, "a", of("alice"))
    assert len(pool.asked) == n


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
    assert (caught.value.kind, caught.value.code) == ("internal", "worker_died") and len(pool.asked) == 2


def test_a_machine_without_a_process_for_it_is_no_fault_of_the_form() -> None:
    pool = Pool()
    known = grammars(pool)
    for _ in range(2):
        with pytest.raises(Refusal) as caught:
            ask(known, "no fork")
        assert (caught.value.kind, caught.value.code, caught.value.param) == ("unavailable", "no_process", None)
    assert len(pool.asked) == 2  # nothing is remembered of it


def test_what_is_kept_is_kept_for_a_key_and_its_salt() -> None:
    """Its time would tell another key that somebody asked the same before."""
    pool = Pool()
    known = grammars(pool)
    asked = (of("one"), of("two"), of("one", cache_salt="a"), of("one"), of("two"))
    found = [ask(known, "a", request) for request in asked]
    assert len(pool.asked) == 3 and found[:2] == found[3:]
    pool = Pool()
    shared = grammars(pool, CacheSalts("server"))
    assert ask(shared, "a", of("one")) == ask(shared, "a", of("two")) and len(pool.asked) == 1


def together(pool: Pool, source: str, n: int, *, leave: int = 0) -> list[Any]:
    """What becomes of n requests for the same, of which the first ones leave while it is compiled."""

    async def scenario() -> list[Any]:
        known, grammar = grammars(pool), Grammar(kind="regex", source=source, param="x")
        tasks = [asyncio.create_task(known.compiled(replace(REQUEST, id=f"r{i}"), grammar)) for i in range(n)]
        await asyncio.sleep(0.01)
        assert len(pool.asked) == 1
        for task in tasks[:leave]:
            task.cancel()
        await asyncio.sleep(0.01)
        if leave == n:
            assert pool.n_cancelled == 1 and not known._asked and not known._waiting
            tasks.append(asyncio.create_task(known.compiled(REQUEST, grammar)))  # finds nothing of what has ended
            await asyncio.sleep(0.01)
        pool.goes_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(scenario())


def test_many_that_want_the_same_wait_for_one() -> None:
    pool = Pool(wait=True)
    found = together(pool, "a", 5, leave=2)
    assert [isinstance(one, asyncio.CancelledError) for one in found] == [True, True, False, False, False]
    assert all(one.source == "a" for one in found[2:]) and len(pool.asked) == 1
    pool = Pool(wait=True)
    *left, last = together(pool, "a", 3, leave=3)
    assert all(isinstance(one, asyncio.CancelledError) for one in left)
    assert last.source == "a" and len(pool.asked) == 2


def test_a_failure_reaches_all_who_wait() -> None:
    for source, deaths, kind in (("bad", 0, "invalid_request"), ("no fork", 0, "unavailable"), ("a", 2, "internal")):
        found = together(Pool(deaths, wait=True), source, 3)
        assert [isinstance(one, Refusal) and one.kind for one in found] == [kind] * 3


def test_a_worker_is_asked_in_the_clients_name() -> None:
    pool = Pool()
    ask(grammars(pool), "a", of("one"))
    assert pool.clients == ["one"]
