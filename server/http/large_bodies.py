"""Large bodies are read by one thread, slice by slice: its time is shared among clients, as everything else is."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect

from model.engine.scheduling.fair_shares import ServiceClocks

R = TypeVar("R")

Steps: TypeAlias = Generator[None, None, R]  # work that can stop after each slice, and ends with a result

TURN_SECONDS = 0.02  # of the thread's time; the slice at the end of which they are over is the turn's last
MOST_BEGUN = 256 << 20  # bytes of all bodies that are begun: beside each lies in memory what was read of it so far


def at_once(steps: Steps[R]) -> R:
    """The result, without a stop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value
            return result


class LargeBodies:
    """The line of what is read, client by client; a client's own bodies are read in the order in which they came.

    The loop keeps the line and hands the thread one turn at a time. A FairQueue's job runs from its turn to its end and
    then leaves. Here the first body of each client keeps its place from turn to turn, so that the clocks are kept
    directly: a client is charged what its turns took, and is there until its last body is read.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        """clock: seconds that the thread which calls it has worked."""
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bodies")
        self._clocks: ServiceClocks[str] = ServiceClocks()
        self._lines: dict[str, deque[_Body]] = {}
        self._has_turn: _Body | None = None

    async def read(self, client: str, nbytes: int, steps: Steps[R], left: Callable[[], bool]) -> R:
        """The result of `steps`, which read a body of so many bytes.

        left: whether its client has; that ends it at its next turn. Raises what `steps` raise, and ClientDisconnect.
        """
        body = _Body(nbytes, steps)
        line = self._lines.setdefault(client, deque())
        self._clocks.enter(client, waits=bool(line))
        line.append(body)
        try:
            while not body.ended:
                self._give_turn()
                await body.turn.wait()
                body.turn.clear()
                if left():
                    raise ClientDisconnect
                body.begun, body.took = True, 0.0
                self._clocks.begin(client, 0.0)
                turn = asyncio.get_running_loop().run_in_executor(self._thread, body.go_on, self._clock)
                try:
                    await asyncio.shield(turn)
                except asyncio.CancelledError:  # the thread goes on to the end of its slice, which is charged, too
                    await asyncio.wait({turn})
                    turn.exception()
                    raise
                finally:
                    self._clocks.end(client, body.took)
                    self._has_turn = None
            result: R = body.result
            return result
        finally:
            if self._has_turn is body:
                self._has_turn = None
            line.remove(body)
            if not line:
                del self._lines[client]
            self._clocks.leave(client)
            self._give_turn()

    def _give_turn(self) -> None:
        """Where the thread is free: to the client that was given least of those whose first body there is room for."""
        if self._has_turn is not None:
            return
        begun = sum(line[0].nbytes for line in self._lines.values() if line[0].begun)
        for client in self._clocks.turns():
            body = self._lines[client][0]
            if body.begun or not begun or begun + body.nbytes <= MOST_BEGUN:
                self._has_turn = body
                body.turn.set()
                return


class _Body:
    def __init__(self, nbytes: int, steps: Steps[Any]) -> None:
        self.nbytes = nbytes
        self.turn = asyncio.Event()
        self.begun = False
        self.ended = False
        self.took = 0.0  # seconds of its last turn
        self.result: Any = None
        self._steps = steps

    def go_on(self, clock: Callable[[], float]) -> None:
        """One turn, in the thread."""
        began = clock()
        try:
            next(self._steps)
            while clock() - began < TURN_SECONDS:
                next(self._steps)
        except StopIteration as end:
            self.ended, self.result = True, end.value
        finally:
            self.took = clock() - began
