"""The heartbeat of a child process: a message every half second from its start; silence means that it hangs."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from .channel import Channel, ChannelClosed

PULSE_SECONDS = 0.5


class Loading(msgspec.Struct, frozen=True, tag=True):
    """What a child says before it is ready: it is alive, and has got so far."""

    steps: int  # grows with each tensor that is read and each stage that is done; no measure of what is left


class Ending(msgspec.Struct, frozen=True, tag=True):
    """Why a child ends so before it is ready: it refuses, or the kernel may end it for what it begins now."""

    code: int  # its return code; of a signal below 0
    why: str


class Pulse:
    """A thread that speaks beside whatever the process does. It ends with the channel, or by `stop`."""

    def __init__(self, channel: Channel[Any]) -> None:
        self._channel = channel
        self._steps = 0
        self._what: Callable[[], object] = lambda: Loading(steps=self._steps)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def further(self) -> None:
        """The process has got further with loading."""
        self._steps += 1

    def say(self, what: Callable[[], object]) -> None:
        """The process is ready: from now on the pulse is what `what()` returns, which is called in another thread."""
        self._what = what

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(PULSE_SECONDS)  # it ends by itself, unless nobody reads what it says

    def _run(self) -> None:
        try:
            while True:
                with contextlib.suppress(MemoryError):  # a job has all that this process may have: the next beat comes
                    self._channel.send(self._what())
                if self._stopped.wait(PULSE_SECONDS):
                    return
        except ChannelClosed:
            return
