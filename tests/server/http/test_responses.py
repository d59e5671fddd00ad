"""Work lives as long as its client: streams start, keep alive, fail and end as HTTP allows it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from server.http import responses as exchange
from server.http.responses import ClientGone, EventStream, run_while_connected
from server.http.routes.native import NativeSerializer
from server.request_context import RequestContext
from server.requests.answer import Delta, Emit
from server.requests.refusal import Refusal, invalid_request
from tests.server.doubles import prepared
from tests.server.tables import each_of
from tokenization.text.bpe import BPETokenizer

Run = Callable[[Emit], Awaitable[None]]
ACCEPTED = prepared("chat-1", 1)


class Client:
    """The server's view of a client: what it was sent, and when it leaves."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.left = asyncio.Event()

    async def receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()


def stream(tokenizer: BPETokenizer, run: Any, client: Client) -> "asyncio.Task[None]":
    response = EventStream(run, NativeSerializer("chat-1", tokenizer, RequestContext(), logprobs=False))
    scope = {"type": "http", "path": "/x", "state": {"context": RequestContext("r1")}}
    return asyncio.create_task(response(scope, client.receive, client.send))


def test_an_error_before_the_first_event_is_an_ordinary_answer(tokenizer: BPETokenizer) -> None:
    async def scenario() -> None:
        async def run(emit: Emit) -> None:
            raise invalid_request("no", "inputs")

        client = Client()
        await stream(tokenizer, run, client)
        assert client.status == 400 and '"param":"inputs"' in client.body

    asyncio.run(scenario())


@each_of("error", [invalid_request("no"), RuntimeError("internal detail")])
def test_an_error_between_events_is_one_event_and_the_end(tokenizer: BPETokenizer, error: Exception) -> None:
    async def scenario() -> None:
        async def run(emit: Emit) -> None:
            await emit(ACCEPTED, Delta(text="a", tokens=()))
            raise error

        client = Client()
        await stream(tokenizer, run, client)
        assert client.status == 200 and client.body.count('data: {"error"') == 1
        assert client.body.rstrip().split("\n")[-1].startswith('data: {"error"')
        assert "[DONE]" not in client.body and "internal detail" not in client.body
        assert client.sent[-1]["more_body"] is False

    asyncio.run(scenario())


def test_nothing_goes_out_before_the_first_token(tokenizer: BPETokenizer) -> None:
    """What breaks while the prompt is computed is an ordinary answer, too."""

    async def scenario() -> None:
        accepted, computed = asyncio.Event(), asyncio.Event()

        async def run(emit: Emit) -> None:
            accepted.set()
            await computed.wait()
            await emit(ACCEPTED, Delta(text="a", tokens=()))

        client = Client()
        task = stream(tokenizer, run, client)
        await accepted.wait()
        await asyncio.sleep(0.02)
        assert client.sent == []
        computed.set()
        await task
        assert client.status == 200 and client.body.startswith('data: {"id":"chat-1","text":"a"')

    asyncio.run(scenario())


def test_comments_keep_a_waiting_stream_alive(tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the prompt is accepted; the error that follows is then an event."""
    monkeypatch.setattr(exchange, "KEEP_ALIVE_SECONDS", 0.05)

    async def scenario() -> None:
        async def run(emit: Emit) -> None:
            while client.body.count(": keep-alive") < 2:
                await asyncio.sleep(0.01)
            raise invalid_request("no")

        client = Client()
        await stream(tokenizer, run, client)
        assert client.status == 200 and client.body.count(": keep-alive\n\n") >= 2
        assert client.body.count('data: {"error"') == 1

    asyncio.run(scenario())


def test_no_comments_while_events_flow(tokenizer: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "KEEP_ALIVE_SECONDS", 0.2)

    async def scenario() -> None:
        waits: list[float] = []

        async def run(emit: Emit) -> None:
            for _ in range(10):
                begun = time.monotonic()
                await asyncio.sleep(0.04)
                waits.append(time.monotonic() - begun)
                await emit(ACCEPTED, Delta(text="a", tokens=()))

        client = Client()
        await stream(tokenizer, run, client)
        late = sum(wait > 0.15 for wait in waits)  # on a busy machine
        assert client.body.count("keep-alive") <= late and client.body.rstrip().endswith("data: [DONE]")

    asyncio.run(scenario())


def test_a_client_that_leaves_cancels_the_work(tokenizer: BPETokenizer) -> None:
    async def scenario() -> None:
        cancelled = asyncio.Event()

        async def run(emit: Emit) -> None:
            try:
                await emit(ACCEPTED, Delta(text="a", tokens=()))
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)  # the work's own ending is waited for
                cancelled.set()

        client = Client()
        task = stream(tokenizer, run, client)
        while len(client.sent) < 2:
            await asyncio.sleep(0)
        client.left.set()
        await task
        assert cancelled.is_set() and client.sent[-1]["more_body"]

    asyncio.run(scenario())


def test_work_that_a_drain_cancelled_is_a_503() -> None:
    async def scenario() -> None:
        inner: list[asyncio.Task[None]] = []

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            inner.append(task)
            await asyncio.Event().wait()

        client = Client()
        outer = asyncio.create_task(run_while_connected(work(), client.receive))
        while not inner:
            await asyncio.sleep(0)
        inner[0].cancel()
        with pytest.raises(Refusal) as caught:
            await outer
        assert caught.value.kind == "unavailable"

    asyncio.run(scenario())


def test_a_client_that_is_gone_ends_a_plain_exchange() -> None:
    async def scenario() -> None:
        client = Client()
        client.left.set()
        with pytest.raises(ClientGone):
            await run_while_connected(asyncio.sleep(5), client.receive)

    asyncio.run(scenario())
