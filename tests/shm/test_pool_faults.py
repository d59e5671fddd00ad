"""The pool when somebody harms its files, when the disk is full, and when its process dies."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shm import (
    Owner,
    OwnerError,
    Pool,
    PoolFull,
    sweep,
)
from shm.ledger import Ledger, path_file
from tests.shm.conftest import used_bytes
from tests.shm.pools import KIB, SIZE, UNIT, files, finish, on_disk, roundtrip


@pytest.fixture
def pool(owner: Owner) -> Pool:
    return Pool(owner, 4 * UNIT)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    shutil.copyfile(path, path.with_suffix(".copy"))
    os.replace(path.with_suffix(".copy"), path)


def cut(path: Path) -> None:
    os.truncate(path, 100)


@pytest.mark.parametrize("harm", [delete, replace, cut])
def test_a_leased_file_that_somebody_harmed_is_dropped(pool: Pool, owner: Owner, harm: Callable[[Path], None]) -> None:
    names = pool.lease("a", [SIZE] * 4)
    harm(owner.root / names[0])
    harm(owner.root / names[1])
    pool.give_back("a", names[:1])
    pool.retire("a")
    assert pool.stats().total_bytes == on_disk(owner.root) == 2 * UNIT
    pool.settle("a")
    for name in pool.lease("b", [SIZE] * 4):
        roundtrip(owner.root, name, SIZE)


@pytest.mark.parametrize("harm", [delete, replace, cut])
def test_an_idle_file_that_somebody_harmed_is_dropped(pool: Pool, owner: Owner, harm: Callable[[Path], None]) -> None:
    pool.lease("a", [SIZE] * 4)
    finish(pool, "a")
    for name in files(owner.root, ".idle")[:3]:
        harm(owner.root / name)
    for name in pool.lease("b", [SIZE] * 4):
        roundtrip(owner.root, name, SIZE)
    assert pool.stats().total_bytes == on_disk(owner.root) == 4 * UNIT


@pytest.mark.process
def test_a_full_disk_is_a_full_pool_and_rolled_back(small_disk: Path) -> None:
    owner = Owner.claim(small_disk / "root")
    pool = Pool(owner, 64 << 20)
    kept = pool.lease("kept", [300 * KIB, 300 * KIB])
    before = pool.stats()
    with pytest.raises(PoolFull):
        pool.lease("big", [500 * KIB, 10, 1 << 20])
    after = pool.stats()
    assert (after.leases, after.path_files) == (before.leases, 1)
    assert after.total_bytes == on_disk(owner.root)
    for name in kept:
        roundtrip(owner.root, name, 300 * KIB)
    finish(pool, "kept")
    (name,) = pool.lease("one", [1600 * KIB])  # idle files make room for it
    roundtrip(owner.root, name, 1600 * KIB)
    assert pool.stats().total_bytes == on_disk(owner.root)
    owner.close()


@pytest.mark.process
def test_on_a_full_disk_leased_files_are_cut_to_what_they_use(small_disk: Path) -> None:
    owner = Owner.claim(small_disk / "root")
    pool = Pool(owner, 64 << 20)
    pool.lease("big", [1700 * KIB])
    finish(pool, "big")
    (small,) = pool.lease("small", [10])  # sits in that file
    (name,) = pool.lease("one", [1600 * KIB])
    roundtrip(owner.root, name, 1600 * KIB)
    roundtrip(owner.root, small, 10)
    assert pool.stats().total_bytes == on_disk(owner.root)
    owner.close()


@pytest.mark.process
def test_what_others_hold_is_told_from_leases_of_its_own(small_disk: Path) -> None:
    """Both were a memory that "is full of other requests' media", also where nobody had asked for any."""
    owner = Owner.claim(small_disk / "root")
    capacity = 1 << 20  # half of the disk
    pool = Pool(owner, capacity)
    assert pool.stats().others_bytes == 0
    pool.lease("a", [900 * KIB])
    with pytest.raises(PoolFull) as full:
        pool.lease("b", [900 * KIB])
    assert not full.value.by_others and pool.stats().others_bytes == 0
    with open(small_disk / "filler", "wb") as filler:
        left = (2 << 20) - used_bytes(small_disk)
        os.posix_fallocate(filler.fileno(), 0, left - 40 * KIB)
    assert pool.stats().others_bytes == capacity - pool.stats().total_bytes - 40 * KIB
    finish(pool, "a")
    assert len(pool.lease("c", [900 * KIB])) == 1, "what it has it may lend again"
    (small_disk / "filler").unlink()
    assert pool.stats().others_bytes == 0
    owner.close()


@pytest.mark.process
@pytest.mark.parametrize("spare", [0, 4096, 8192])
def test_a_disk_without_room_for_the_books_is_a_full_pool(small_disk: Path, spare: int) -> None:
    owner = Owner.claim(small_disk / "root")
    pool = Pool(owner, 64 << 20)
    with open(small_disk / "filler", "wb") as filler:
        free = (2 << 20) - used_bytes(small_disk)
        os.posix_fallocate(filler.fileno(), 0, free - spare)
    with pytest.raises(PoolFull) as caught:
        pool.lease("a", [10])
    assert caught.value.by_others
    assert pool.stats().total_bytes == 0 and files(owner.root, ".paths") == []
    (small_disk / "filler").unlink()
    roundtrip(owner.root, pool.lease("a", [10])[0], 10)
    owner.close()


def test_a_failure_in_the_middle_of_a_lease_takes_all_of_it_back(
    pool: Pool, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.lease("kept", [10])
    real, calls = os.rename, []

    def rename(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 3:
            raise OSError(5, "Input/output error")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(OSError):
            pool.lease("a", [10, 20, 30])
    assert files(owner.root, ".paths") == [f"{owner.name}.kept.paths"]
    assert pool.stats().leases == 1 and pool.stats().total_bytes == on_disk(owner.root)
    assert len(pool.lease("a", [10, 20, 30])) == 3


def test_everything_of_a_dead_pool_is_swept(root: Path) -> None:
    owner = Owner.claim(root)
    pool = Pool(owner, 16 * UNIT)
    pool.lease("leased", [SIZE, SIZE])
    pool.lease("retired", [SIZE])
    pool.retire("retired")
    pool.lease("idle", [SIZE])
    finish(pool, "idle")
    with Ledger.open(path_file(root, owner.name, "recorded")) as ledger:
        ledger.append(["0123456789a"])  # killed between the line and the rename
    os.close(owner.fileno())
    report = sweep(root)
    assert (report.owners, report.segments, report.bytes) == (1, 4, 4 * UNIT)
    assert not root.exists()


def lose_directory(owner: Owner) -> None:
    shutil.rmtree(owner.root)


def lose_owner_file(owner: Owner) -> None:
    (owner.root / f"{owner.name}.owner").unlink()


@pytest.mark.parametrize("lose", [lose_directory, lose_owner_file])
@pytest.mark.parametrize("noticed", ["by a lease", "by who looks after it"])
def test_a_pool_whose_place_was_removed_begins_anew(
    pool: Pool, owner: Owner, lose: Callable[[Owner], None], noticed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was lent is lost with it. Late words of its requests change nothing, and the new owner holds the lock."""
    held = pool.lease("held", [SIZE])
    pool.lease("retired", [SIZE])
    pool.retire("retired")
    pool.lease("done", [SIZE, SIZE])
    finish(pool, "done")
    lose(owner)
    if noticed == "by a lease":
        (name,) = pool.lease("next", [SIZE])
    else:
        pool.keep_place()
        assert files(owner.root, ".paths") == files(owner.root, "") == files(owner.root, ".idle") == []
        (name,) = pool.lease("next", [SIZE])
    pool.give_back("held", held)
    for late in ("held", "retired", "done"):
        finish(pool, late)
    roundtrip(owner.root, name, SIZE)
    stats = pool.stats()
    assert (stats.leases, stats.segments, stats.total_bytes, stats.path_files) == (1, 1, UNIT, 1)
    assert sweep(owner.root).owners == 0 and files(owner.root, ".owner") == [f"{owner.name}.owner"]
    assert not os.get_inheritable(owner.fileno())
    assert [record.getMessage() for record in caplog.records if "begins anew" in record.getMessage()] != []
    finish(pool, "next")


def test_a_place_that_vanishes_in_mid_lease_costs_nothing(
    pool: Pool, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Owner.record

    def record(self: Owner, name: str) -> None:
        monkeypatch.setattr(Owner, "record", real)
        lose_directory(self)
        real(self, name)

    monkeypatch.setattr(Owner, "record", record)
    (name,) = pool.lease("one", [SIZE])
    roundtrip(owner.root, name, SIZE)
    finish(pool, "one")


def test_a_place_that_others_may_enter_gets_no_segment_until_it_is_private_again(pool: Pool, owner: Owner) -> None:
    pool.lease("before", [SIZE])
    owner.root.chmod(0o755)
    for call in (pool.keep_place, lambda: pool.lease("now", [SIZE])):
        with pytest.raises(OwnerError, match="only 0700 keeps other users out"):
            call()
    owner.root.chmod(0o700)
    pool.keep_place()
    pool.lease("after", [SIZE])
    assert pool.stats().leases == 2, "nothing was lost"
    for request in ("before", "after"):
        finish(pool, request)
