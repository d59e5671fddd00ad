"""Where a server listens, what it takes of the machine, and that it gives all of it back."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from configs.serve import HttpConfig, ModelConfig, ServeConfig, ShmConfig
from server import run as program
from server.children.supervisor import StartFailed
from server.run import listen, serve, url_of
from shm import Owner
from tests.server.doubles import card
from tokenization.text.bpe import BPETokenizer


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


# ---- where it listens


def test_a_client_reaches_the_socket_by_its_url() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert url_of(sock) == f"http://127.0.0.1:{port}" and port > 0
        socket.create_connection(("127.0.0.1", port), 5).close()


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_ipv6_url_has_brackets(host: str) -> None:
    with listen(host, 0) as sock:
        port = sock.getsockname()[1]
        assert sock.family == socket.AF_INET6 and url_of(sock) == f"http://[::1]:{port}"
        socket.create_connection(("::1", port), 5).close()


@pytest.mark.parametrize("host", ["0.0.0.0", ""])
def test_who_listens_everywhere_is_reached_on_this_machine(host: str) -> None:
    with listen(host, 0) as sock:
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_an_address_that_is_taken_is_said() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(StartFailed) as caught:
            listen("127.0.0.1", port)
    assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: Address already in use"


def test_a_host_that_nobody_knows_is_said() -> None:
    with pytest.raises(StartFailed, match=r"^cannot listen on \.\.:80: Name or service not known") as caught:
        listen("..", 80)
    assert "\n" not in str(caught.value)


# ---- what it takes and gives back


def settings(**fields: Any) -> ServeConfig:
    return ServeConfig(
        model=ModelConfig(path=Path("/models/tiny"), served_name="tiny"),
        http=HttpConfig(port=0),
        **fields,
    )


def test_nothing_is_taken_where_the_address_is_not_free(tokenizer: BPETokenizer, tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as sock:
        config = ServeConfig(model=settings().model, http=HttpConfig(port=sock.getsockname()[1]))
        with pytest.raises(StartFailed, match="Address already in use"):
            asyncio.run(serve(config, card(tokenizer), tmp_path / "shm"))
    assert not (tmp_path / "shm").exists()


@pytest.mark.parametrize(("has", "asked", "expected"), [(1 << 20, 1 << 30, 1 << 20), (1 << 30, 1 << 20, 1 << 20)])
def test_the_pool_is_cut_to_what_there_is_and_nothing_stays(
    tokenizer: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], has: int, asked: int, expected: int,
) -> None:  # fmt: skip
    made: list[int] = []
    socks: list[socket.socket] = []

    class ServerDouble:
        """Notes what it is given, and fails."""

        def __init__(self, config: ServeConfig, card: Any, owner: Owner, pool_bytes: int) -> None:
            made.append(pool_bytes)
            assert (owner.root / f"{owner.name}.owner").exists()

        async def run(self, sock: socket.socket) -> None:
            socks.append(sock)
            raise ZeroDivisionError

    monkeypatch.setattr(program, "room", lambda root: has)
    monkeypatch.setattr(program, "Server", ServerDouble)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(serve(settings(shm=ShmConfig(pool_bytes=asked)), card(tokenizer), tmp_path / "shm"))
    assert made == [expected] and socks[0].fileno() == -1 and not (tmp_path / "shm").exists()
    assert ("instead of --shm-mib" in capsys.readouterr().out) == (has < asked)
