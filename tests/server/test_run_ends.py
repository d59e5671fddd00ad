"""A whole server over children that only pretend: it starts, serves, drains and ends, whatever ends it."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from configs.serve import EngineConfig, HttpConfig, ModelConfig, ServeConfig
from model.engine.messages import EngineReady, StartEngine
from server.__main__ import ExitOnSignal
from server.children import supervisor
from server.children.processes import ChildRole, Ownership
from server.children.supervisor import StartFailed
from server.listening import listen, url_of
from server.request_context import RequestContext
from server.run import Server
from shm import ChannelClosed, Owner
from tests.server.doubles import ChannelDouble, ChildDouble, card, until
from tokenization.messages import StartWorker, WorkerReady
from tokenization.text.bpe import BPETokenizer

READY = EngineReady(
    device="cpu", dtype="float32", vocab_size=400, kv_blocks=10, block_size=100, memory=(), max_media_tokens=500
)  # fmt: skip


class FewWords(ChannelDouble):
    """A child's channel: the child says these words and nothing after them."""

    def __init__(self, words: list[Any]) -> None:
        super().__init__()
        self._words = words
        self._ended = asyncio.Event()

    async def recv(self) -> Any:
        if self._words:
            return self._words.pop()
        await self._ended.wait()
        raise ChannelClosed("the peer is gone")

    def close(self) -> None:
        super().close()
        self._ended.set()


class Pretender(ChildDouble):
    """A child that gets ready if it `loads`, and ends when it is told to; `graces` notes how long it was given."""

    def __init__(self, role: ChildRole, graces: list[float], *, loads: bool) -> None:
        super().__init__()
        self.role = role
        self.channel = FewWords([READY if role == "engine" else WorkerReady()] if loads else [])
        self._graces = graces

    def die(self, code: int) -> None:
        """The process is gone, and with it its end of the channel."""
        self.channel.close()
        if self.alive:
            self.exited.set_result(code)

    def kill(self) -> None:
        self.die(-signal.SIGKILL)

    async def end(self, grace: float) -> None:
        self._graces.append(grace)
        self.die(0)


class RunningServer:
    """A real server whose children are doubles."""

    def __init__(self, server: Server, sock: socket.socket, children: list[Pretender], graces: list[float]) -> None:
        self.server, self.children, self.graces = server, children, graces
        self.service = server._service
        self.url = url_of(sock, "http")
        self.task = asyncio.create_task(server.run(sock))

    async def ready(self) -> None:
        async with httpx.AsyncClient() as client:
            while (await client.get(self.url + "/health/ready")).status_code != 200:
                await asyncio.sleep(0.01)

    def signal(self) -> None:
        """SIGTERM, where it is handled."""
        assert callable(signal.getsignal(signal.SIGTERM)), "it would end the tests"
        os.kill(os.getpid(), signal.SIGTERM)

    async def asked(self) -> "tuple[asyncio.Task[None], asyncio.Event]":
        """A request, and what ends it."""
        end = asyncio.Event()

        async def wait() -> None:
            with self.service.admission.enter(RequestContext()):
                await end.wait()

        task = asyncio.create_task(wait())
        await until(lambda: self.service.admission.n_active == 1)
        return task, end


Scenario = Callable[[RunningServer], Coroutine[Any, Any, None]]
Live = Callable[..., None]


@pytest.fixture
def live(tokenizer: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Live:
    """Run a scenario with a server on a free port; whatever happens, its children end and nothing stays."""

    def live(scenario: Scenario, *, loads: bool = True, drain_seconds: float = 60.0) -> None:
        config = ServeConfig(
            model=ModelConfig(path=Path("/models/tiny"), served_name="tiny"),
            http=HttpConfig(drain_seconds=drain_seconds),
        )
        children: list[Pretender] = []
        graces: list[float] = []

        def launch(role: ChildRole, owned: Ownership, receives: Any, inherits: Sequence[int]) -> Pretender:
            children.append(Pretender(role, graces, loads=loads))
            return children[-1]

        async def run() -> None:
            owner = Owner.claim(tmp_path / "shm")
            with listen("127.0.0.1", 0) as sock:
                running = RunningServer(
                    Server(config, card(tokenizer), owner, 1 << 20, lambda: 0), sock, children, graces
                )
                try:
                    await asyncio.wait_for(scenario(running), 100)
                    assert running.task.done()
                finally:
                    running.task.cancel()
                    await asyncio.wait({running.task})
                    owner.close()
            assert not any(child.alive for child in children)

        monkeypatch.setattr(supervisor, "launch", launch)
        asyncio.run(run())
        assert not (tmp_path / "shm").exists()

    return live


def test_a_signal_before_it_ran_ends_it_though_its_exception_was_dropped(live: Live) -> None:
    """Callbacks and C code drop what a handler raises: PID 1 of a container then went on for good."""
    before, handler = signal.getsignal(signal.SIGTERM), ExitOnSignal()
    signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGTERM)
        assert ended.value.code == 128 + signal.SIGTERM

        async def scenario(running: RunningServer) -> None:
            await asyncio.wait_for(running.task, 60)

        live(scenario)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_it_starts_its_children_says_so_and_ends_at_a_signal(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(running: RunningServer) -> None:
        await running.ready()
        roles = ["worker", "worker", "text_worker", "picture_worker", "engine"]
        assert [child.role for child in running.children] == roles
        starts = [child.channel.said[0] for child in running.children]
        assert [type(start) for start in starts] == [*[StartWorker] * 4, StartEngine]
        assert [start.lane for start in starts[:4]] == ["media", "media", "text", "picture"]
        assert {start.max_model_len for start in starts} == {2000} and starts[-1].engine == EngineConfig()
        running.signal()
        await running.task
        assert len(running.graces) == 5 and all(grace > 0 for grace in running.graces)
        assert capsys.readouterr().out.rstrip().endswith(f"Pixelferry ready on {running.url}")

    live(scenario)


def test_at_a_signal_who_is_inside_may_end_and_nobody_else_comes(live: Live) -> None:
    async def scenario(running: RunningServer) -> None:
        await running.ready()
        inside, end = await running.asked()
        running.signal()
        await until(lambda: running.service.admission.draining)
        async with httpx.AsyncClient() as client:
            refused = await client.post(running.url + "/chat", json=[{"text": "Hi"}])
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "stopping"
        assert not running.task.done() and not inside.done()
        end.set()
        await running.task
        assert inside.done() and not inside.cancelled()

    live(scenario)


def test_a_drain_that_runs_out_of_time_ends_who_is_inside(live: Live) -> None:
    async def scenario(running: RunningServer) -> None:
        await running.ready()
        inside, _ = await running.asked()
        running.signal()
        await running.task
        assert inside.cancelled()

    live(scenario, drain_seconds=0.05)


def test_a_second_signal_ends_it_at_once(live: Live) -> None:
    async def scenario(running: RunningServer) -> None:
        await running.ready()
        inside, _ = await running.asked()
        running.signal()
        await until(lambda: running.service.admission.draining)
        running.signal()
        await running.task
        assert running.graces == [0.0] * 5, "its children are not waited for"
        inside.cancel()

    live(scenario)


def test_a_signal_while_the_model_loads_ends_it(live: Live) -> None:
    async def scenario(running: RunningServer) -> None:
        await until(lambda: len(running.children) == 5)
        running.signal()
        await running.task

    live(scenario, loads=False)


def test_a_child_that_cannot_start_ends_it(live: Live) -> None:
    async def scenario(running: RunningServer) -> None:
        await until(lambda: len(running.children) == 5)
        running.children[4].die(1)
        with pytest.raises(StartFailed, match="the engine could not start: exit code 1"):
            await running.task

    live(scenario, loads=False)


def test_a_child_that_dies_later_is_started_again(live: Live) -> None:
    async def scenario(running: RunningServer) -> None:
        await running.ready()
        running.children[0].kill()
        await until(lambda: len(running.children) == 5)
        await running.ready()
        assert running.children[5].role == "worker" and not running.task.done()
        async with httpx.AsyncClient() as client:
            metrics = (await client.get(running.url + "/metrics")).text
        assert 'child_restarts_total{role="worker"} 1.0' in metrics
        running.signal()
        await running.task

    live(scenario)


def test_a_task_in_the_background_that_fails_ends_it_with_its_error(live: Live) -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    async def scenario(running: RunningServer) -> None:
        await running.ready()
        running.server._segments.spawn(fails())
        with pytest.raises(ZeroDivisionError):
            await running.task

    live(scenario)
