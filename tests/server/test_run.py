"""What a server takes of the machine, that it gives all of it back, and what it says of whom it lets in."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from configs.serve import HttpConfig, ModelConfig, ServeConfig, ShmConfig
from server import run as program
from server.children.supervisor import StartFailed
from server.http.middleware.keys import ApiKeys
from server.listening import listen
from server.run import serve
from shm import Owner
from tests.server.doubles import card
from tests.server.tables import each_of
from tokenization.text.bpe import BPETokenizer


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
            asyncio.run(serve(config, card(tokenizer), tmp_path / "shm", lambda: 0))
    assert not (tmp_path / "shm").exists()


@each_of(("has", "asked", "expected"), [(1 << 20, 1 << 30, 1 << 20), (1 << 30, 1 << 20, 1 << 20)])
def test_the_pool_is_cut_to_what_there_is_and_nothing_stays(
    tokenizer: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], has: int, asked: int, expected: int,
) -> None:  # fmt: skip
    made: list[int] = []
    socks: list[socket.socket] = []

    class ServerDouble:
        """Notes what it is given, and fails."""

        def __init__(
            self, config: ServeConfig, card: Any, owner: Owner, pool_bytes: int, dropped: Any, keys: Any
        ) -> None:
            made.append(pool_bytes)
            assert (owner.root / f"{owner.name}.owner").exists()

        async def run(self, sock: socket.socket) -> None:
            socks.append(sock)
            raise ZeroDivisionError

    monkeypatch.setattr(program, "room", lambda root: has)
    monkeypatch.setattr(program, "Server", ServerDouble)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(serve(settings(shm=ShmConfig(pool_bytes=asked)), card(tokenizer), tmp_path / "shm", lambda: 0))
    assert made == [expected] and socks[0].fileno() == -1 and not (tmp_path / "shm").exists()
    assert ("instead of --shm-mib" in capsys.readouterr().out) == (has < asked)


@each_of(
    ("fields", "warned"),
    [({}, False), ({"host": "0.0.0.0"}, True), ({"host": "0.0.0.0", "api_keys": (b"x" * 32,)}, False)],
)
def test_a_server_that_others_reach_says_so_and_shows_them_no_path(
    tokenizer: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    fields: dict[str, Any], warned: bool,
) -> None:  # fmt: skip
    given: list[Any] = []
    roots: list[str] = []
    urls: list[str] = []

    class ServerDouble:
        """Notes its keys and ends."""

        def __init__(
            self, config: ServeConfig, card: Any, owner: Owner, pool_bytes: int, dropped: Any, keys: Any
        ) -> None:
            given.append(keys)
            roots.append(card.root)

        async def run(self, sock: socket.socket) -> None:
            urls.append((tmp_path / "url").read_text())

    monkeypatch.setattr(program, "Server", ServerDouble)
    http = HttpConfig(port=0, url_file=tmp_path / "url", **fields)
    shown = msgspec.structs.replace(http, show_model_root=True)
    for config in (http, shown):
        asyncio.run(
            serve(ServeConfig(model=settings().model, http=config), card(tokenizer), tmp_path / "shm", lambda: 0)
        )
    assert roots == ["tiny" if "host" in fields else "/models/tiny", "/models/tiny"]
    assert ("ANYBODY who reaches 0.0.0.0" in caplog.text) == warned
    assert isinstance(given[0], ApiKeys) == ("api_keys" in fields)
    assert urls[0].startswith("http://127.0.0.1:") and not (tmp_path / "url").exists()


@each_of(("files", "disk"), [(64, None), (1 << 20, "ext4"), (1 << 20, None)])
def test_what_the_machine_lacks_is_said_at_start(
    tokenizer: BPETokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    files: int, disk: str | None,
) -> None:  # fmt: skip
    """With 64 descriptors a server had room for one connection, and pictures went to a disk: in silence."""

    class ServerDouble:
        """Ends at once."""

        def __init__(self, *parts: Any) -> None:
            pass

        async def run(self, sock: socket.socket) -> None:
            pass

    monkeypatch.setattr(program, "Server", ServerDouble)
    monkeypatch.setattr(program, "raise_descriptor_limit", lambda: files)
    monkeypatch.setattr(program, "disk_under", lambda root: disk)
    asyncio.run(serve(settings(), card(tokenizer), tmp_path / "shm", lambda: 0))
    said = [record.getMessage() for record in caplog.records]
    few = "limit of open files is 64 (ulimit -Hn), which leaves room for 1 connections of the 8192 of --max-connections"
    assert [few in line for line in said if "open files" in line] == [True] * (files == 64)
    lies = f"--shm-root {tmp_path / 'shm'} lies on a disk (ext4)"
    assert [lies in line for line in said if "disk" in line] == [True] * (disk is not None)
