"""The prompts of one body: what they share is made once, and they are answered together."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from server.requests.admission import stopping
from server.requests.checks import check_sums
from server.requests.grammars import Grammars
from server.requests.model_card import RequestLimits
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.messages import Prepared
from tokenization.text.tokenizer import Tokenizer

Accepted = Callable[[Sequence[Prepared]], None]  # all prompts of a body, in their order
Spellings = tuple[tuple[int, ...], ...]

AT_A_TIME = 8  # bad words of one body; then those of another one have their turn


async def run_together(runs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """One of each prompt, all at once. The first one that fails ends the others.

    One that somebody else cancelled (a drain that ran out of time) is a Refusal.
    """
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        left = set(tasks)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.cancelled():
                    raise stopping()
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # seen: the first one's error is enough


@dataclass(slots=True, eq=False)
class AllPrepared:
    """Holds every prompt back until all are prepared and their sums are known; calls `accepted` then.

    The form of their answers, which is one for all, is compiled before.
    """

    requests: Sequence[ChatRequest]
    room: int  # tokens of one prompt with its answer
    limits: RequestLimits
    bad_words: Spellings
    accepted: Accepted | None
    _form: CompiledGrammar | None = None
    _compiled: asyncio.Event = field(default_factory=asyncio.Event)
    _prepared: dict[int, Prepared] = field(default_factory=dict)
    _all: asyncio.Event = field(default_factory=asyncio.Event)

    async def form(self, index: int, grammar: Grammar, grammars: Grammars) -> CompiledGrammar:
        """Compiled in the place of the first one. Raises Refusal to that, which ends the others."""
        if index == 0:
            self._form = await grammars.compiled(self.requests[0], grammar)
            self._compiled.set()
        await self._compiled.wait()
        assert self._form is not None
        return self._form

    async def wait(self, index: int, prepared: Prepared) -> None:
        """Raises Refusal, and what `accepted` raises, to the one that came last."""
        self._prepared[index] = prepared
        if len(self._prepared) == len(self.requests):
            found, lengths = list[Prepared](), list[int]()
            for i in range(len(self.requests)):
                found.append(self._prepared[i])
                lengths.append(len(found[i].input_ids))
            check_sums(self.requests, self.room, self.limits, lengths, sum(map(len, self.bad_words)))
            if self.accepted is not None:
                self.accepted(found)
            self._all.set()
        await self._all.wait()


class Speller:
    """The ids of words that an answer must not hold, found in a thread beside the loop, which bodies share in turn."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bad-words")

    async def spell(self, words: Sequence[str], param: str) -> Spellings:
        """Each word as it stands at the beginning of a text, and behind a blank; none twice. Raises Refusal.

        vLLM's rule, but that it leaves the second spelling out where that has another number of ids.
        """
        loop, found = asyncio.get_running_loop(), dict[tuple[int, ...], None]()
        for start in range(0, len(words), AT_A_TIME):
            part = words[start : start + AT_A_TIME]
            found |= await loop.run_in_executor(self._thread, self._spelled, part, start, param)
        return tuple(found)

    def _spelled(self, words: Sequence[str], start: int, param: str) -> dict[tuple[int, ...], None]:
        found: dict[tuple[int, ...], None] = {}
        for i, word in enumerate(words, start):
            for text in (word.lstrip(), f" {word.lstrip()}"):
                try:
                    ids = self._tokenizer.encode(text)
                except ValueError as error:
                    raise invalid_request(str(error), f"{param}[{i}]") from None
                if ids:
                    found[tuple(ids)] = None
        return found
