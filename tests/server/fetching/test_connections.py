"""A name is looked up once, all its addresses count, and what is connected to is one of these."""

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from server.fetching.addresses import AllowedNetworks
from server.fetching.connections import LIKE_SECONDS, CheckedConnections, NoSuchHost
from server.fetching.target import ForbiddenUrl
from tests.tables import each_of

LOOPBACK = ("127.0.0.0/8",)


class ResolverDouble:
    """The machine's resolver: a list of answers, the last of which stays."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, *args: Any, **kwargs: Any) -> list[Any]:
        self.asked.append(host)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]


def connect(
    monkeypatch: pytest.MonkeyPatch, resolver: ResolverDouble, networks: tuple[str, ...] = LOOPBACK, times: int = 1,
    *, named: bool = True,
) -> list[str]:  # fmt: skip
    """The addresses that `times` connections to one name reached, at a port of this test. named: by the operator."""

    async def reach() -> list[str]:
        reached: list[str] = []
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
            connections = CheckedConnections(AllowedNetworks(networks), threads, 2.0, lambda _: named)
            for _ in range(times):
                stream = await connections.connect_tcp("name.test", listener.getsockname()[1])
                reached.append(stream.get_extra_info("server_addr")[0])
                await stream.aclose()
        return reached

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    return asyncio.run(reach())


def test_a_name_is_what_it_was_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would be later nobody asks; tests/server/fetching/test_fetch.py has a name that changes."""
    resolver = ResolverDouble(("127.0.0.1",), ())
    assert connect(monkeypatch, resolver, times=3) == ["127.0.0.1"] * 3
    assert resolver.asked == ["name.test"]


def test_a_forbidden_address_refuses_the_name_and_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ForbiddenUrl, match="not public") as caught:
        connect(monkeypatch, ResolverDouble(("127.0.0.1",)), networks=())
    assert "127" not in str(caught.value)


@each_of("found", [(), ("127.0.0.1",), ("10.0.0.1", "93.184.215.14")])
def test_of_other_names_no_answer_tells_whether_they_are_there(
    monkeypatch: pytest.MonkeyPatch, found: tuple[str, ...]
) -> None:
    """A client could else ask, name by name, what a private network holds: by the error, or by its time."""
    begun = time.monotonic()
    with pytest.raises(NoSuchHost) as caught:
        connect(monkeypatch, ResolverDouble(found), networks=(), named=False)
    assert str(caught.value) == "" and time.monotonic() - begun >= LIKE_SECONDS


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoSuchHost):
        connect(monkeypatch, ResolverDouble(()))
