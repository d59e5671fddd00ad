"""The prompts of one body: what they share is made once, and they are answered together."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from server.requests.admission import stopping
from server.requests.answer import Accept, Delta, Emit
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from tokenization.messages import Prepared
from tokenization.text.tokenizer import Tokenizer

Run = Callable[[ChatRequest, Emit, Accept], Coroutine[Any, Any, None]]
Accepted = Callable[[Sequence[Prepared]], None]  # all prompts of a body, in their order
Spellings = tuple[tuple[int, ...], ...]

AT_A_TIME = 8  # bad words of one body; then those of another one have their turn


async def run_prompts(run: Run, requests: Sequence[ChatRequest], emit: Emit, accepted: Accepted) -> None:
    """Run all of them at once; the answers of the i-th have the indices from n i on. Raises Refusal.

    `accepted` is called before any delta, when no prompt is left that could be refused for what it is. The first one
    that fails ends the others. One that somebody else cancelled (a drain that ran out of time) is a Refusal.
    """
    if len(requests) == 1:
        await run(requests[0], emit, functools.partial(_alone, accepted))
        return
    together = _Together(len(requests), accepted)
    tasks = [
        asyncio.create_task(
            run(request, _numbered(emit, i * request.sampling.n), functools.partial(together.accept, i))
        )
        for i, request in enumerate(requests)
    ]
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


async def _alone(accepted: Accepted, prepared: Prepared) -> None:
    accepted([prepared])


def _numbered(emit: Emit, first: int) -> Emit:
    """For one prompt, whose answers have the indices from `first` on."""

    async def write(prepared: Prepared, delta: Delta) -> None:
        await emit(prepared, replace(delta, index=first + delta.index))

    return write


class _Together:
    """Holds every prompt back until all are prepared."""

    def __init__(self, n: int, accepted: Accepted) -> None:
        self._n = n
        self._accepted = accepted
        self._prepared: dict[int, Prepared] = {}
        self._all = asyncio.Event()

    async def accept(self, index: int, prepared: Prepared) -> None:
        self._prepared[index] = prepared
        if len(self._prepared) == self._n:
            self._accepted([self._prepared[i] for i in range(self._n)])
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
