"""The loop as the server meets it: a process at the other end of a channel, with origins on 127.0.0.1."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from configs.fetch import FetchConfig
from server.fetching.loop import FetchLoop
from server.fetching.messages import (
    PIECE_BYTES,
    CancelFetch,
    Fetch,
    FetchedPiece,
    FetchEnded,
    FetcherPulse,
    FetcherReady,
    FromFetcher,
    StartFetcher,
    ToFetcher,
)
from shm import AsyncChannel, ChannelClosed, Ending, channel_pair

MEDIUM = os.urandom(3 * PIECE_BYTES)
CONFIG = FetchConfig(domains=("127.0.0.1",), networks=("127.0.0.0/8",), first_byte_seconds=20, seconds=30)


class OriginDouble:
    """Serves the medium at /medium, and nothing, for as long as it is there, elsewhere."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked = threading.Event()  # for what is not there
        self.left = threading.Event()  # somebody who was told nothing
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer:
            if b"/medium" in peer.recv(4096):
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(MEDIUM) + MEDIUM)
                return
            self.asked.set()
            if not peer.recv(1):
                self.left.set()


def run(scenario: Callable[[AsyncChannel[FromFetcher]], Coroutine[Any, Any, None]], config: FetchConfig) -> None:
    async def both() -> None:
        ours, theirs = channel_pair()
        loop = FetchLoop(AsyncChannel[ToFetcher](theirs, ToFetcher))
        fetching = asyncio.create_task(loop.run())
        channel: AsyncChannel[FromFetcher] = AsyncChannel(ours, FromFetcher)
        await channel.send(StartFetcher(config=config, user_agent="pixelferry/test"))
        assert isinstance(await channel.recv(), FetcherReady)
        await asyncio.wait_for(scenario(channel), 30)
        channel.close()
        with pytest.raises(ChannelClosed):
            await asyncio.wait_for(fetching, 5)
        await asyncio.sleep(0.01)  # the streams close

    asyncio.run(both())


async def said(channel: AsyncChannel[FromFetcher], n: int = 1) -> tuple[dict[str, bytes], dict[str, FetchEnded]]:
    """Bytes and last words, by request, until `n` have ended."""
    pieces: dict[str, bytes] = {}
    ended: dict[str, FetchEnded] = {}
    while len(ended) < n:
        match await channel.recv():
            case FetchedPiece(request_id=request_id, data=data):
                assert len(data) <= PIECE_BYTES + (1 << 16) and request_id not in ended
                pieces[request_id] = pieces.get(request_id, b"") + data
            case FetchEnded() as last:
                ended[last.request_id] = last
            case other:
                assert isinstance(other, FetcherPulse)
    return pieces, ended


def test_media_come_in_pieces_beside_each_other() -> None:
    origin = OriginDouble()

    async def scenario(channel: AsyncChannel[FromFetcher]) -> None:
        for name in "abc":
            await channel.send(Fetch(request_id=name, url=f"{origin.url}/medium", max_bytes=len(MEDIUM)))
        await channel.send(Fetch(request_id="small", url=f"{origin.url}/medium", max_bytes=len(MEDIUM) - 1))
        await channel.send(Fetch(request_id="far", url="http://localhost/", max_bytes=9))
        pieces, ended = await said(channel, 5)
        assert {name: one.outcome for name, one in ended.items()} == {
            "a": "whole", "b": "whole", "c": "whole", "small": "large", "far": "forbidden",
        }  # fmt: skip
        assert all(pieces[name] == MEDIUM for name in "abc") and "small" not in pieces

    run(scenario, CONFIG)


def test_a_fetch_that_nobody_wants_ends_and_says_so() -> None:
    """At any moment: also before it has begun, and one that is not there any more."""
    origin = OriginDouble()

    async def scenario(channel: AsyncChannel[FromFetcher]) -> None:
        await channel.send(Fetch(request_id="at once", url=f"{origin.url}/silence", max_bytes=9))
        await channel.send(CancelFetch(request_id="at once"))
        await channel.send(CancelFetch(request_id="never asked"))
        _, ended = await said(channel)
        assert ended["at once"].outcome == "cancelled"
        await channel.send(Fetch(request_id="later", url=f"{origin.url}/silence", max_bytes=9))
        assert await asyncio.to_thread(origin.asked.wait, 60)
        await channel.send(CancelFetch(request_id="later"))
        _, ended = await said(channel)
        assert ended["later"].outcome == "cancelled"
        assert await asyncio.to_thread(origin.left.wait, 60), "its connection is closed"

    run(scenario, CONFIG)


def test_it_speaks_while_it_waits() -> None:
    origin = OriginDouble()

    async def scenario(channel: AsyncChannel[FromFetcher]) -> None:
        await channel.send(Fetch(request_id="a", url=f"{origin.url}/silence", max_bytes=9))
        assert isinstance(await channel.recv(), FetcherPulse)
        assert isinstance(await channel.recv(), FetcherPulse)

    run(scenario, CONFIG)


def test_certificates_that_cannot_be_read_end_it(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")

    async def start() -> None:
        ours, theirs = channel_pair()
        channel: AsyncChannel[Ending] = AsyncChannel(ours, Ending)
        config = FetchConfig(domains=("a.test",), ca=tmp_path / "ca.pem")
        await channel.send(StartFetcher(config=config, user_agent="pixelferry/test"))
        child: AsyncChannel[ToFetcher] = AsyncChannel(theirs, ToFetcher)
        with pytest.raises(SystemExit):
            await FetchLoop(child).run()
        ending = await channel.recv()
        assert ending.code == 1 and ending.why.startswith(f"--media-ca: {tmp_path}")
        channel.close()
        child.close()
        await asyncio.sleep(0.01)

    asyncio.run(start())
