"""The leak check sees each kind of leak when one is planted, and is silent about a live server's pool."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import leaks


@pytest.fixture
def live_owner(tmp_path: Path) -> Iterator[Path]:
    """A root with an owner file whose lock is held."""
    root = tmp_path / "root"
    root.mkdir()
    descriptor = os.open(root / "0123456789abcdef.owner", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield root
    os.close(descriptor)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "SETTLE_SECONDS", 0.0)


def test_a_live_pool_without_leases_is_no_leak(live_owner: Path) -> None:
    (live_owner / "0123456789a.idle").write_bytes(b"x")
    assert leaks.problems_in(live_owner) == []
    assert leaks.problems_in(live_owner / "missing") == []


def test_a_planted_leak_is_seen(live_owner: Path) -> None:
    seen = {}
    for name in ("0123456789a", "0123456789abcdef.request-1.paths", "fedcba9876543210.owner"):
        (live_owner / name).write_bytes(b"")
        seen[name] = len(leaks.problems_in(live_owner))
        (live_owner / name).unlink()
    assert set(seen.values()) == {1}, seen


def test_any_file_without_a_live_owner_is_a_leak(tmp_path: Path) -> None:
    (tmp_path / "0123456789a.idle").write_bytes(b"x")
    assert leaks.problems_in(tmp_path) == [f"{tmp_path.name}: 1 files and no owner"]


def test_a_root_beside_the_sessions_own_is_looked_at_too(live_owner: Path) -> None:
    before = leaks.start_record(live_owner, live_owner / "missing")
    beside = live_owner.with_name(f"{live_owner.name}-killed")
    beside.mkdir()
    assert leaks.left_behind(before) == []
    (beside / "0123456789a").write_bytes(b"x")
    assert leaks.left_behind(before) == [f"{beside.name}: a lease"]


def test_leases_of_this_process_in_the_shared_root_are_seen(live_owner: Path) -> None:
    before = leaks.start_record(live_owner / "missing", live_owner)
    assert leaks.left_behind(before) == []
    (live_owner / "0123456789abcdef.owner").write_text("0123456789a     \n")
    (live_owner / "0123456789a").write_bytes(b"x")
    (live_owner / "0123456789abcdef.request-1.paths").write_text("")
    (live_owner / "00000000000").write_bytes(b"somebody else's")
    assert leaks.left_behind(before) == [
        f"{live_owner.name}: a lease of this process",
        f"{live_owner.name}: a path file of this process",
    ]


def test_a_dead_owner_that_is_new_in_the_shared_root_is_seen(live_owner: Path) -> None:
    (live_owner / "aaaaaaaaaaaaaaaa.owner").write_bytes(b"")
    before = leaks.start_record(live_owner / "missing", live_owner)
    assert leaks.left_behind(before) == []
    (live_owner / "bbbbbbbbbbbbbbbb.owner").write_bytes(b"")
    assert len(leaks.left_behind(before)) == 1
