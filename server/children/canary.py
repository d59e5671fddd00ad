"""Asks the engine for one token where nobody else gets one, so that an engine that is stuck is seen."""

import asyncio
import logging
import time
from typing import Literal

from model.engine.messages import EngineReady, Generate, SamplingParams
from server.children.engine_client import EngineClient, EngineDied, EngineFailed, Stream
from server.metrics import Metrics
from tokenization.placeholders import text_only

log = logging.getLogger("pixelferry")

LOOK_SECONDS = 0.5  # between two looks
CanaryResult = Literal["answered", "late", "failed"]


class Canary:
    """Asks while the engine gives no tokens to anybody: where tokens come, they prove the same.

    It takes nobody's place. An engine that works on something else, however long, is not late: only one that neither
    is inside a step nor ends one while this request waits. What follows from it stands in liveness.py.
    """

    def __init__(self, engine: EngineClient, every: float, deadline: float, metrics: Metrics) -> None:
        """every: seconds without a token after which it asks; deadline: seconds without work that it waits."""
        self._engine = engine
        self._every = every
        self._deadline = deadline
        self._metrics = metrics
        self._n = 0

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(min(LOOK_SECONDS, self._every))
            engine, info = self._engine, self._engine.info
            if engine.up and info is not None:
                tokenless = time.monotonic() - engine.liveness.last_token
                if tokenless >= self._every or engine.liveness.unanswered:
                    await self._ask(info)

    async def _ask(self, info: EngineReady) -> None:
        self._n += 1
        word = next(i for i in range(info.vocab_size) if i not in info.media_ids)
        stream = Stream(f"canary-{self._n}", unfinished={0})
        prepared = text_only(stream.request_id, [word])
        sampling = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
        self._engine.submit_at_once(stream, Generate(prepared=prepared, sampling=sampling))
        try:
            result: CanaryResult = "answered" if await self._answered(stream) else "late"
        except EngineFailed as error:
            log.error("canary-%d: the engine failed: %s", self._n, error)
            result = "failed"
        except EngineDied:
            return  # its supervisor has seen it, too
        finally:
            self._engine.leave(stream)
        self._engine.liveness.unanswered = 0 if result == "answered" else self._engine.liveness.unanswered + 1
        if result == "late":
            log.error("canary-%d: the engine does nothing and gave no token within %g s", self._n, self._deadline)
        self._metrics.canary(result)

    async def _answered(self, stream: Stream) -> bool:
        """Whether a token came in time. Raises EngineDied, EngineFailed."""
        asked = looked = time.monotonic()
        answer = asyncio.ensure_future(stream.next())
        try:
            while not answer.done():
                await asyncio.wait({answer}, timeout=LOOK_SECONDS)
                now = time.monotonic()
                if now - looked > LOOK_SECONDS + self._deadline / 2:
                    asked = now  # this process itself was stopped or starved: what was sent meanwhile is unread
                looked = now
                if now - max(asked, self._engine.liveness.last_work) > self._deadline:
                    break
            return answer.done() and bool(answer.result())
        finally:
            answer.cancel()
