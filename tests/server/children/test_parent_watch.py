"""A server ends with whoever started it, however that one died: its processes soon, its shared memory with them."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from configs.settings import REPO
from server.children.parent_watch import watch_parent
from server.children.supervisor import StartFailed
from tests.e2e.running import PROGRAM, SMALL, children_of, command_line, is_gone, until
from tests.server.tables import each_of

SECONDS = 15.0  # in which a server is gone, and in 35 its memory
PARENT = f"""
import os, subprocess, sys
ours, theirs = os.pipe()
command = [*{PROGRAM!r}, "serve", *{SMALL!r}, "--parent-descriptor", str(ours), *sys.argv[1:]]
server = subprocess.Popen(command, pass_fds=[ours])
os.close(ours)
print(server.pid, flush=True)
server.wait()
"""
# A process that watches, does what it is told to, and never looks whether it should end.
DEAF = """
import os, signal, sys, time
from server.children import parent_watch
parent_watch.END_SECONDS = 1.0
{prepared}
parent_watch.watch_parent(int(sys.argv[1]))
print("watches", flush=True)
while True:
    time.sleep(60)
"""


def start(root: Path, *flags: str) -> tuple["subprocess.Popen[str]", int]:
    """Somebody who started a server, and its pid."""
    command = [sys.executable, "-c", PARENT, "--shm-root", str(root), *flags]
    parent = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.faults
@each_of("moment", ["loading", "ready"])
def test_a_server_ends_with_the_process_that_started_it(moment: str, tmp_path: Path) -> None:
    root = tmp_path / "shm"
    parent, server = start(root, "--url-file", str(tmp_path / "url"), "--workers", "1")
    try:
        until("it listens", lambda: (tmp_path / "url").exists(), 100)
        if moment == "ready":
            assert parent.stdout is not None
            until("it is ready", lambda: "ready on" in parent.stdout.readline(), 100)  # type: ignore[union-attr]
        children = until("its children run", lambda: [*children_of(server)], 30)
        parent.kill()
        died = time.monotonic()
        until("the server and its children are gone", lambda: all(map(is_gone, [server, *children])), SECONDS)
        until("its shared memory is gone", lambda: not root.exists(), 35 - (time.monotonic() - died))
        assert not (tmp_path / "url").exists()  # it ended by its own means, and was not cut off
    finally:
        parent.kill()
        parent.communicate()
        if not is_gone(server) and "--parent-descriptor" in command_line(server):
            os.kill(server, signal.SIGKILL)


@each_of(
    ("prepared", "code"),
    [
        ("", -signal.SIGTERM),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", 128 + signal.SIGTERM),
        ("signal.signal(signal.SIGTERM, lambda *_: print('again', flush=True))", 128 + signal.SIGTERM),
    ],
)
def test_who_does_not_end_by_itself_is_ended(prepared: str, code: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        script = textwrap.dedent(DEAF).format(prepared=prepared)
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(theirs.fileno())], pass_fds=[theirs.fileno()], cwd=REPO,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        theirs.close()
        assert process.stdout is not None and process.stdout.readline() == "watches\n"
        ours.send(b"data is no hang-up")
        time.sleep(0.3)
        assert process.poll() is None
        ours.close()
        said, _ = process.communicate(timeout=30)
        assert (process.returncode, said.count("again")) == (code, 2 if "again" in prepared else 0)


def test_a_descriptor_on_which_nothing_is_seen_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        with pytest.raises(StartFailed, match=rf"--parent-descriptor {file.fileno()}: neither a pipe nor a socket"):
            watch_parent(file.fileno())
        closed = os.dup(file.fileno())
    os.close(closed)
    with pytest.raises(StartFailed, match=rf"--parent-descriptor {closed}: Bad file descriptor"):
        watch_parent(closed)
    command = [*PROGRAM, "serve", "--parent-descriptor", "77"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("--parent-descriptor 77: Bad file descriptor\n")
