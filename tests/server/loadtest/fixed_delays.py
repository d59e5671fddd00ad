"""A chat endpoint that answers with fixed delays, in the dialect of several servers: what a load test must measure.

`python -m tests.server.loadtest.fixed_delays --port 8009` serves it for other tools, too.
"""

import argparse
import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop


@dataclass
class Delays:
    """What the endpoint does; seconds. `seen` collects the bodies that it got."""

    first: float = 0.05
    between: float = 0.01
    tokens: int = 8  # of an answer where the request does not say
    dialect: str = "vllm"  # vllm, openai (CRLF and comments), llama (role chunk at once), native
    usage: bool = True
    text: str = "word "
    status: int = 200
    fail_after: int | None = None  # tokens, then an error event
    cut_after: int | None = None  # tokens, then the connection breaks
    root: str = ""  # of the model: where other tools find a tokenizer
    metrics: dict[str, float] = field(default_factory=dict)
    leak: str | None = None  # a metric that each request makes larger, for good
    counted: dict[str, float] = field(default_factory=dict)  # what each request adds to metrics
    hang: frozenset[int] = frozenset()  # requests, counted from 0, that are never answered
    one_queue: bool = False  # answers come one after the other, each `first` after the one before it
    drop_every: int = 0  # of so many requests the last one's connection is closed, without a byte
    gone_after: int | None = None  # requests; then it closes its socket and all connections
    busy_after: int | None = None  # looks at its metrics; from then on it is never idle
    looks: int = 0
    key: str | None = None
    seen: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    broken: int = 0  # answers that their clients left


class Endpoint:
    """The server."""

    def __init__(self, delays: Delays) -> None:
        self.delays = delays
        self.url = ""
        self.server: asyncio.Server | None = None
        self.writers: list[asyncio.StreamWriter] = []
        self.free = 0.0  # of one queue: when its server has nothing more to do

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.delays.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                body = await reader.readexactly(length) if length else b""
                method, path, _ = head.split(b" ", 2)
                keyed = self.delays.key is None or f"Bearer {self.delays.key}".encode() in head
                await self.answer(method.decode(), path.decode(), body, writer, keyed)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            self.delays.broken += 1
        finally:
            writer.close()

    async def answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter, keyed: bool) -> None:
        delays = self.delays
        if not keyed:
            await whole(writer, {"error": {"code": "invalid_api_key"}}, 401)
        elif path == "/v1/models":
            await whole(writer, {"data": [{"id": "fixed", "object": "model", "root": delays.root}]})
        elif path == "/metrics":
            delays.looks += 1
            if delays.busy_after is not None:
                delays.metrics["num_requests_running"] = float(delays.looks > delays.busy_after)
            lines = "\n".join(f"pixelferry:{name} {value}" for name, value in delays.metrics.items())
            await whole(writer, lines.encode(), 200 if lines else 404)
        elif method == "GET":
            await whole(writer, {"status": "live"})
        else:
            await self.chat(json.loads(body), writer)

    async def chat(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        delays = self.delays
        delays.seen.append(body)
        if delays.gone_after is not None and len(delays.seen) > delays.gone_after:
            assert self.server is not None
            self.server.close()
            for one in self.writers:
                one.transport.abort()
        if delays.drop_every and len(delays.seen) % delays.drop_every == 0:
            raise ConnectionError
        if len(delays.seen) - 1 in delays.hang:
            await asyncio.sleep(3600)
        if delays.leak is not None:
            delays.metrics[delays.leak] += 1000
        for name, more in delays.counted.items():
            delays.metrics[name] += more
        if delays.status != 200:
            await whole(writer, {"error": {"message": "no", "code": "queue_full"}}, delays.status)
            return
        if delays.one_queue:
            loop = asyncio.get_running_loop()
            self.free = max(self.free, loop.time()) + delays.first
            await asyncio.sleep(self.free - delays.first - loop.time())
        asked = body.get("max_tokens") or body.get("max_completion_tokens")
        n = asked or body.get("parameters", {}).get("max_tokens") or delays.tokens
        usage = {"prompt_tokens": 7, "completion_tokens": n, "total_tokens": 7 + n}
        if not body.get("stream"):
            await asyncio.sleep(delays.first)
            message = {"message": {"role": "assistant", "content": delays.text * n}, "finish_reason": "length"}
            await whole(writer, {"choices": [message], "usage": usage})
            return
        await self.stream(n, usage, writer)

    async def stream(self, n: int, usage: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        delays, loop = self.delays, asyncio.get_running_loop()
        began = loop.time()
        end = b"\r\n" if delays.dialect == "openai" else b"\n"

        async def event(value: Any) -> None:
            data = value if isinstance(value, bytes) else b"data: " + json.dumps(value).encode()
            await chunk(writer, data + end + end)

        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if delays.dialect in ("openai", "llama"):
            await event(b": hello")
            await event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for number in range(n):
            await asyncio.sleep(max(0.0, began + delays.first + number * delays.between - loop.time()))
            if number == 0 and delays.dialect == "vllm":
                await event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
            if number == delays.cut_after:
                writer.transport.abort()
                raise ConnectionError
            if number == delays.fail_after:
                await event({"error": {"message": "died", "code": "engine_died"}})
                await chunk(writer, b"")
                return
            finish = "length" if number == n - 1 else None
            await event(self.event_of(delays.text, finish))
        if delays.usage:
            last = {"text": "", "usage": usage, "finish_reason": None}
            await event(last if delays.dialect == "native" else {"choices": [], "usage": usage})
        await event(b"data: [DONE]")
        await chunk(writer, b"")

    def event_of(self, text: str, finish: str | None) -> dict[str, Any]:
        if self.delays.dialect == "native":
            return {"id": "chat-1", "text": text, "finish_reason": finish}
        return {"id": "1", "object": "chat.completion.chunk", "model": "fixed", "created": 1,
                "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}  # fmt: skip


async def whole(writer: asyncio.StreamWriter, value: Any, status: int = 200) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    await writer.drain()


async def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
    await writer.drain()


@asynccontextmanager
async def running(delays: Delays, port: int = 0) -> AsyncIterator[Endpoint]:
    """The endpoint on a free port of this machine, until the block ends."""
    endpoint = Endpoint(delays)
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", port)
    endpoint.server = server
    endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield endpoint
    finally:
        server.close()


@contextmanager
def in_a_thread(delays: Delays) -> Iterator[Endpoint]:
    """The same, in a thread of its own."""
    found: list[Endpoint] = []
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with running(delays) as endpoint:
            found.append(endpoint)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    ready.wait(60)
    try:
        yield found[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


async def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--first", type=float, default=0.05)
    parser.add_argument("--between", type=float, default=0.01)
    parser.add_argument("--dialect", default="vllm")
    parser.add_argument("--root", default="")
    given = parser.parse_args(argv)
    delays = Delays(first=given.first, between=given.between, dialect=given.dialect, root=given.root)
    async with running(delays, given.port) as endpoint:
        print(endpoint.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
