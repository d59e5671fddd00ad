"""Prompts without a template: how those of one body are answered together."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from server.requests.admission import stopping
from server.requests.answer import Accept, Delta, Emit
from server.requests.request import ChatRequest
from tokenization.messages import Prepared

Run = Callable[[ChatRequest, Emit, Accept], Coroutine[Any, Any, None]]


async def run_prompts(
    run: Run, requests: Sequence[ChatRequest], emit: Emit, accepted: Callable[[Sequence[Prepared]], None]
) -> None:
    """Run all of them at once; the answers of the i-th have the indices from n i on. Raises Refusal.

    `accepted` is called before any delta, when no prompt is left that could be refused for what it is. The first one
    that fails ends the others. One that somebody else cancelled (a drain that ran out of time) is a Refusal.
    """
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


def _numbered(emit: Emit, first: int) -> Emit:
    """For one prompt, whose answers have the indices from `first` on."""

    async def write(prepared: Prepared, delta: Delta) -> None:
        await emit(prepared, replace(delta, index=first + delta.index))

    return write


class _Together:
    """Holds every prompt back until all are prepared."""

    def __init__(self, n: int, accepted: Callable[[Sequence[Prepared]], None]) -> None:
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
