"""The process main of every child: takes its channel, looks the family up, runs its room.

Run as `python -m server.children.child_main ROLE CHANNEL_FD LOCK_FD SHM_ROOT OWNER_NAME LOG_LEVEL LOG_FORMAT`, where
ROLE is worker, text_worker, picture_worker, engine or fetcher, by server/children/processes.py only.
"""

import ctypes
import faulthandler
import functools
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from configs.checkpoint import Checkpoint, CheckpointError
from configs.logs import LogConfig
from server.children.stacks import offer_stacks
from server.logs.load_progress import LoadProgress
from server.logs.setup import complain_of_defect, set_up
from shm import Channel, ChannelClosed, Ending, Pulse, sweep, sweep_if_last

HANGUP_SECONDS = 10.0
SWEEP_AGAIN_FOR_SECONDS = 2.0
DYING_SECONDS = 0.2  # how long a dead server may still look like this process's parent
SWEEP_AGAIN_SECONDS = 0.03
PR_SET_PDEATHSIG = 1  # of prctl(2)
# The server alone decides about an end, also when an init system signals every process: it drains. A stopped child that
# the server's death continues is hung up before, and has yet to sweep. A terminal that stops whoever writes to it in
# the background (stty tostop) must not stop the log.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU)
REFUSED = 1  # the exit code of a child that said why it cannot start


def main(argv: list[str]) -> int:
    """The exit code: 0 when told to end, 1 for a checkpoint or device that is refused: the server was told why."""
    wake_at_server_death()
    role, channel_fd, lock_fd, root, owner_name = argv[0], int(argv[1]), int(argv[2]), Path(argv[3]), argv[4]
    set_up(msgspec.convert({"level": argv[5], "format": argv[6]}, LogConfig), role)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    offer_stacks()
    os.set_inheritable(lock_fd, False)
    server = os.getppid()

    on_hangup = functools.partial(end, root, lock_fd, owner_name, server)
    threading.Thread(target=wait_for_hangup, args=(channel_fd, on_hangup), name="orphan-watch", daemon=True).start()
    try:
        if role == "engine":
            run_engine(channel_fd)
        elif role == "fetcher":
            run_fetcher(channel_fd)
        else:
            run_worker(channel_fd)
    except ChannelClosed:
        pass
    except Exception:  # noqa: BLE001 - a process main: the reason goes to the log, the exit code to the server
        complain_of_defect("this process failed")
        # Not by return: threads of a broken process (a device's, a pool's) must not keep it from ending.
        os._exit(REFUSED)
    threading.Event().wait(HANGUP_SECONDS)  # the channel is closed: the watch sweeps and ends this process
    return 0


def wake_at_server_death() -> None:
    """Have the kernel continue this process when the server dies: stopped, it could not see the hang-up.

    It would outlive the server for good and keep all shared memory owned. Continued, its own watch sweeps and ends
    it. The signal comes also when only the thread that started this process ends, and may come to a process that was
    never stopped: nothing happens then, which SIGKILL or SIGTERM could not promise.
    """
    if sys.platform == "linux":
        # Refused by a sandbox, say, it changes nothing for a child that is not stopped, so the answer is not looked at.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGCONT))


def end(root: Path, lock_fd: int, owner_name: str, server: int) -> None:
    """End this process, whatever happens; before that, free what the server left if this is the last that it had."""
    try:
        sweep_if_last(root, lock_fd, owner_name)
        sweep_until_server_ends(root, server)
    except Exception:  # noqa: BLE001 - the process ends here, so that nobody else could say why memory stays
        complain_of_defect("the shared memory of a server that is gone could not be swept")
    finally:
        os._exit(0)


def sweep_until_server_ends(root: Path, server: int) -> None:
    """Sweep again for a moment after the server's death, unless it lives on and so cleans up by itself.

    A process that is killed closes its channel, its lock and, last, its memory one after another: another child that
    died with the server may hold the owner's lock for some time after this one has tried to take it.
    """
    begun = time.monotonic()
    while root.exists() and (waited := time.monotonic() - begun) < SWEEP_AGAIN_FOR_SECONDS:
        if waited > DYING_SECONDS and os.getppid() == server:
            return
        time.sleep(SWEEP_AGAIN_SECONDS)
        sweep(root)


def wait_for_hangup(channel_fd: int, on_hangup: Callable[[], None]) -> None:
    """Wait until the server's end of the channel is gone; it may be told or killed, both look the same here.

    Only a hang-up is waited for, never data: the channel's own reader takes those. So this works from the first
    moment, also while torch is still being imported, and while the main thread is inside a long step.
    """
    poll = select.poll()
    poll.register(channel_fd, 0)
    poll.poll()
    on_hangup()


@contextmanager
def refusals_told(channel: Channel[Any]) -> Iterator[None]:
    """The server says what is refused here: once, however many children refuse it."""
    try:
        yield
    except CheckpointError as error:
        channel.send(Ending(code=REFUSED, why=str(error)))
        raise SystemExit(REFUSED) from None


def run_worker(channel_fd: int) -> None:
    """A tokenizer worker: never imports torch."""
    from tokenization.messages import StartWorker, ToWorker

    channel: Channel[ToWorker] = Channel(channel_fd, ToWorker)
    pulse = Pulse(channel)
    from model.registry import family_of
    from tokenization import worker
    from tokenization.template_proof import prove_template
    from tokenization.worker_memory import bound_memory

    start = channel.recv(None)
    assert isinstance(start, StartWorker)
    with suppress(OSError):  # it is gone
        os.chdir(start.directory or ".")
    with refusals_told(channel):
        checkpoint = Checkpoint(Path(start.checkpoint), Path(start.chat_template) if start.chat_template else None)
        processor = family_of(checkpoint).processor(checkpoint, start.media.max_pixels)
        prove_template(processor, start.worker.memory_bytes, channel.send)
        bound_memory(start.worker.memory_bytes)
    worker.run(channel, start, processor, pulse)


def run_engine(channel_fd: int) -> None:
    """The engine: the only process that imports torch."""
    from model.engine.messages import StartEngine, ToEngine

    channel: Channel[ToEngine] = Channel(channel_fd, ToEngine)
    pulse = Pulse(channel)
    start = channel.recv(None)
    assert isinstance(start, StartEngine)
    gc.disable()  # what is imported is never garbage: to look for some in torch's takes a tenth of its import
    logging.getLogger("pixelferry").info("importing torch")  # seconds, on a busy machine many, in which nothing is said
    from model.device import DeviceError
    from model.engine import loop

    gc.freeze()
    gc.enable()
    with refusals_told(channel):
        try:
            pulse.further()
            loop.run(channel, start, pulse, LoadProgress())
        except DeviceError as error:
            raise CheckpointError(str(error)) from None


def run_fetcher(channel_fd: int) -> None:
    """The process that fetches media by URL: it decodes nothing, and knows no model."""
    from server.fetching import loop

    loop.run(channel_fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
