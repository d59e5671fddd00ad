"""`pixelferry`, or `python -m server`: what a signal means from the first line on, then the subcommands."""

import gc
import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the subcommand that the command line names; its exit code.

    To import the rest takes seconds. A SIGTERM that comes meanwhile, or while a model is fetched, ends the process:
    as PID 1 of a container it has no other way to end. deploy/entrypoint.sh holds signals back until here. A SIGHUP
    asks a server to read keys and certificate again: before it has read them it says nothing.
    """
    signal.signal(signal.SIGTERM, _leave)  # no exception: an import may drop it, call it another, or crash over it
    if sys.argv[1:2] == ["serve"]:
        signal.signal(signal.SIGHUP, _pass)  # a handler of ours, for a child would inherit that it is ignored
    if sys.argv[1:2] == ["loadtest"]:  # also where a shell had it ignored (`&`)
        signal.signal(signal.SIGINT, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    gc.disable()  # what is imported is never garbage: to look for some in it is a seventh of importing
    from server import commands

    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGTERM, ExitOnSignal())
    return commands.main(sys.argv[1:])


class ExitOnSignal:
    """A handler that raises SystemExit, from when there may be something to clean up.

    C code and callbacks may drop the exception. `received` stays, and the server's own handler looks at it
    (server/run.py).
    """

    received = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        raise SystemExit(128 + number)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _pass(number: int, frame: FrameType | None) -> None: ...


if __name__ == "__main__":
    sys.exit(main())
