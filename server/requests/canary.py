"""A request of the server's own for one token, which tells an engine that is busy from one that is broken."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal

from model.engine.messages import Generate, SamplingParams
from server.children.engine_client import EngineClient, EngineDied, EngineFailed, Stream
from tokenization.placeholders import text_only

log = logging.getLogger("pixelferry")

LOOK_SECONDS = 0.5
Result = Literal["answered", "late", "failed"]


class Canary:
    """Asks while the engine gives no tokens to anybody: where tokens come, they prove the same.

    It takes nobody's place. An engine that works on something else, however long, is not late: only one that neither
    is inside a step nor ends one while this request waits.
    """

    def __init__(self, engine: EngineClient, every: float, deadline: float, tell: Callable[[Result], None]) -> None:
        """every: seconds without a token after which it asks; deadline: seconds without work that it waits."""
        self._engine = engine
        self._every = every
        self._deadline = deadline
        self._tell = tell
        self._n = 0

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(min(LOOK_SECONDS, self._every))
            if self._due():
                await self._ask()

    def _due(self) -> bool:
        engine = self._engine
        silent = time.monotonic() - engine.last_token
        return engine.up and (silent >= self._every or engine.unanswered > 0)

    async def _ask(self) -> None:
        self._n += 1
        stream = self._engine.enter(self._request())
        try:
            result: Result = "answered" if await self._answered(stream) else "late"
        except EngineFailed as error:
            log.error("canary-%d: the engine failed: %s", self._n, error)
            result = "failed"
        except EngineDied:
            return  # its supervisor has seen it, too
        finally:
            self._engine.leave(stream)
        self._engine.unanswered = 0 if result == "answered" else self._engine.unanswered + 1
        if result == "late":
            log.error("canary-%d: the engine does nothing and gave no token within %g s", self._n, self._deadline)
        self._tell(result)

    def _request(self) -> Generate:
        info = self._engine.info
        assert info is not None, "an engine that is up has said so"
        word = next(i for i in range(info.vocab_size) if i not in info.media_ids)
        sampling = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
        return Generate(prepared=text_only(f"canary-{self._n}", [word]), sampling=sampling)

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
                if now - max(asked, self._engine.last_work) > self._deadline:
                    break
            return answer.done() and bool(answer.result())
        finally:
            answer.cancel()
