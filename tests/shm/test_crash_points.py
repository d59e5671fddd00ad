"""A crash between any two system calls: at each of these moments every segment is listed where a sweep looks for it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shm import Owner, Pool, create_shm, release_shared_memory, sweep
from shm.ledger import names_in
from tests.shm.conftest import put
from tests.shm.pools import SIZE, UNIT

CALLS = ("open", "rename", "unlink", "pwrite", "ftruncate", "posix_fallocate", "close")


def unlisted(root: Path) -> set[str]:
    """Segments that no owner file and no path file in `root` names."""
    names = set(os.listdir(root)) if root.exists() else set()
    books = [name for name in names if name.endswith((".owner", ".paths"))]
    listed = {line for name in books if name.endswith(".owner") for line in (root / name).read_text().split()}
    listed.update(line for name in books if name.endswith(".paths") for line in names_in(root / name))
    return names - set(books) - listed


@pytest.fixture
def moments(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Checks the books after every system call that changes files; lists those calls."""
    seen: list[str] = []

    def watch(name: str) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            if not watching:
                return result
            watching.clear()  # the check itself makes such calls
            seen.append(name)
            lost = unlisted(root)
            watching.append(True)
            assert not lost, f"after {name}{args} a crash would lose {lost}"
            return result

        monkeypatch.setattr(os, name, call)

    watching = [True]
    for name in CALLS:
        watch(name)
    return seen


def test_the_whole_life_of_a_pool(root: Path, moments: list[str]) -> None:
    owner = Owner.claim(root)
    pool = Pool(owner, 4 * UNIT)
    pool.lease("a", [10, SIZE, 100])
    first, *_ = pool.lease("b", [10, 20])
    pool.give_back("b", [first])
    pool.retire("a")
    pool.lease("b", [SIZE])
    pool.settle("a")
    pool.lease("c", [2 * SIZE])
    pool.retire("b")
    pool.settle("b")
    owner.close()
    assert len(moments) > 80


def test_the_whole_life_of_stand_alone_segments(root: Path, tmp_path: Path, moments: list[str]) -> None:
    for i in range(3):
        create_shm(10, tmp_path / f"path{i % 2}", root)
    assert release_shared_memory(tmp_path / "path0", root) == 2
    create_shm(10, tmp_path / "path0", root)
    assert [release_shared_memory(tmp_path / f"path{i}", root) for i in range(2)] == [1, 1]
    assert len(moments) > 40


def test_a_sweeper_that_dies_at_any_moment_leaves_the_rest_to_the_next(root: Path) -> None:
    class Crash(Exception):
        pass

    for moment in range(6):
        owner = Owner.claim(root)
        pool = Pool(owner, 4 * UNIT)
        pool.lease("a", [10, 20])
        put(owner)
        os.close(owner.fileno())
        calls: list[Any] = []
        real = os.unlink

        def unlink(
            path: Any, *, at: int = moment, calls: list[Any] = calls, real: Callable[[Any], None] = real
        ) -> None:
            calls.append(path)
            if len(calls) == at + 1:
                raise Crash
            real(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "unlink", unlink)
            try:
                sweep(root)
            except Crash:
                assert unlisted(root) == set()
        sweep(root)
        assert not root.exists()


def test_the_check_sees_a_segment_that_is_not_listed(root: Path, moments: list[str]) -> None:
    owner = Owner.claim(root)
    with pytest.raises(AssertionError, match="a crash would lose"):
        os.close(os.open(root / "0123456789a", os.O_CREAT | os.O_RDWR))
    os.unlink(root / "0123456789a")
    owner.close()
