"""The end of a server with whoever started it: the death is seen on an inherited descriptor, whatever it was."""

import os
import select
import signal
import stat
import threading
import time

from server.children.supervisor import StartFailed

END_SECONDS = 10.0  # for the server to end by itself: its loop may hang, or be busy for so long
AGAIN_SECONDS = 0.5


def watch_parent(descriptor: int) -> None:
    """Once the other end of this pipe or socket is closed everywhere, end this process, at once and for sure.

    Nobody is left who could take an answer, so nothing is drained: SIGTERM comes until the process has ended, of which
    the second one ends a server at once. After END_SECONDS the process exits, and its children sweep, as after any
    death of a server. Raises StartFailed for a descriptor on which nothing can be seen.
    """
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError as error:
        raise StartFailed(f"--parent-descriptor {descriptor}: {os.strerror(error.errno or 0)}") from None
    if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        raise StartFailed(f"--parent-descriptor {descriptor}: neither a pipe nor a socket")
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_watch, args=(descriptor,), name="parent-watch", daemon=True).start()


def _watch(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)  # a hang-up is told always, and nothing else is asked for
    poll.poll()
    ends = time.monotonic() + END_SECONDS
    while time.monotonic() < ends:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(AGAIN_SECONDS)
    os._exit(128 + signal.SIGTERM)
