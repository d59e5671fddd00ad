"""A replica's own server: ready when it says so, drained at its end, and gone with whoever held it."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from configs.settings import REPO
from deploy.ray.forwarding import Head
from deploy.ray.server_process import ServerEnded, ServerProcess, start
from shm import default_root
from tests.e2e.running import children_of, is_gone, until

FLAGS = ("--device", "cpu", "--kv-cache-mib", "64", "--threads", "1", "--workers", "1")
HOLDER = """
import asyncio, os, sys
from deploy.ray.server_process import start
server = start(sys.argv[1:], "held" + str(os.getpid()))
asyncio.run(server.ready())
print("server", server.pid, flush=True)
asyncio.run(asyncio.sleep(600))
"""


@pytest.mark.faults
def test_it_serves_until_it_is_told_to_end() -> None:
    name = f"test{os.getpid()}"
    root = Path(f"{default_root()}-{name}")

    async def life() -> tuple[Head, bytes]:
        server = start(FLAGS, name)
        await server.ready()
        assert root.exists() and await server.answers(b"/health/live") and not await server.answers(b"/nowhere")
        answer = await server.get(b"/v1/models", [(b"host", b"localhost")])
        server.check_alive()
        await server.end()
        with pytest.raises(ServerEnded, match="ended with 0"):
            server.check_alive()
        return answer

    head, body = asyncio.run(life())
    assert head.status == 200 and (b"content-type", b"application/json") in head.headers
    assert b'"object":"list"' in body and str(REPO).encode() not in body, "its clients are those of the ingress"
    assert not root.exists()


@pytest.mark.faults
@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_gone_with_its_holder(ranks: int) -> None:
    """With the process of every card that it has."""
    command = [sys.executable, "-c", HOLDER, *FLAGS, "--tensor-parallel", str(ranks)]
    holder = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        lines = iter(holder.stdout.readline, "")
        server = next(int(line.split()[1]) for line in lines if line.startswith("server "))
        family = [server, *children_of(server)]
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in family]
        assert sum(b"engine" in words for words in commands) == ranks
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    until("all are gone", lambda: all(map(is_gone, family)), 15)
    until("and their memory", lambda: not Path(f"{default_root()}-held{holder.pid}").exists(), 20)


def test_a_busy_server_may_take_its_time() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async def life() -> list[bool]:
        listener = await asyncio.start_server(slow, "127.0.0.1", 0)
        server = ServerProcess(subprocess.Popen(["sleep", "60"]), os.dup(1), tempfile.TemporaryDirectory())
        Path(server._directory.name, "url").write_text(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        await server.ready()
        found = [await server.answers(b"/health/ready", seconds) for seconds in (0.1, 5.0)]
        listener.close()
        await server.end()
        return found

    assert asyncio.run(life()) == [False, True]


def test_one_that_cannot_start_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    async def life() -> None:
        server = start(("--model", "/nowhere"), f"test{os.getpid()}")
        try:
            await server.ready()
        finally:
            await server.end()

    with pytest.raises(ServerEnded, match="ended with [12]"):
        asyncio.run(life())
    assert "/nowhere" in capfd.readouterr().err
