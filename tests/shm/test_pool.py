"""The pool: leases by renaming, the bound, what is freed when, and what others may do to its files."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from shm import (
    NeverFits,
    Owner,
    Pool,
    PoolFull,
    SegmentGone,
    read_segment,
    write_segment,
)
from shm.ledger import path_file
from shm.segment import file_bytes
from tests.shm.pools import KIB, SIZE, UNIT, files, finish, on_disk, roundtrip


@pytest.fixture
def pool(owner: Owner) -> Pool:
    return Pool(owner, 4 * UNIT)


def test_leases_are_written_read_and_given_back(pool: Pool, owner: Owner) -> None:
    names = pool.lease("request", [10, 70_000, 3])
    assert len(set(names)) == 3
    for name, nbytes in zip(names, (10, 70_000, 3), strict=True):
        roundtrip(owner.root, name, nbytes)
    stats = pool.stats()
    assert (stats.leases, stats.segments, stats.path_files, stats.idle_bytes) == (3, 3, 1, 0)
    assert stats.leased_bytes == stats.total_bytes == on_disk(owner.root) == sum(map(file_bytes, (10, 70_000, 3)))
    pool.give_back("request", names[:1])
    assert pool.stats().leases == 2
    with pytest.raises(SegmentGone):
        read_segment(owner.root, names[0], (10,), np.uint8)
    finish(pool, "request")
    stats = pool.stats()
    assert (stats.leases, stats.leased_bytes, stats.path_files) == (0, 0, 0)
    assert stats.idle_bytes == on_disk(owner.root)


def test_the_same_file_is_lent_again_under_another_name(pool: Pool, owner: Owner) -> None:
    seen, inodes = set(), set()
    for i in range(20):
        (name,) = pool.lease(f"r{i}", [SIZE])
        seen.add(name)
        inodes.add((owner.root / name).stat().st_ino)
        pool.give_back(f"r{i}", [name])
        pool.retire(f"r{i}")
    assert len(seen) == 20 and len(inodes) == 1
    assert not any((owner.root / name).exists() for name in seen)
    assert len(files(owner.root, ".idle")) == 1


def test_a_handle_of_an_ended_lease_leads_nowhere_though_its_file_is_in_use(pool: Pool, owner: Owner) -> None:
    (old,) = pool.lease("old", [SIZE])
    finish(pool, "old")
    (new,) = pool.lease("new", [SIZE])
    roundtrip(owner.root, new, SIZE)
    for act in (lambda: read_segment(owner.root, old, (SIZE,), "u1"), lambda: write_old(owner.root, old)):
        with pytest.raises(SegmentGone):
            act()


def write_old(root: Path, name: str) -> None:
    write_segment(root, name, np.zeros(SIZE, np.uint8))


def test_a_retired_file_is_not_lent_before_it_is_settled(pool: Pool, owner: Owner) -> None:
    names = pool.lease("a", [SIZE] * 3)
    inodes = {(owner.root / name).stat().st_ino for name in names}
    pool.retire("a")
    assert not any((owner.root / name).exists() for name in names)
    assert files(owner.root, ".paths") == []
    assert (pool.stats().leases, pool.stats().leased_bytes) == (3, 3 * UNIT)
    (name,) = pool.lease("b", [SIZE])
    assert (owner.root / name).stat().st_ino not in inodes
    with pytest.raises(PoolFull):
        pool.lease("c", [SIZE])
    pool.settle("a")
    (name,) = pool.lease("c", [SIZE])
    assert (owner.root / name).stat().st_ino in inodes


def test_stale_and_second_releases_free_nothing(pool: Pool, owner: Owner) -> None:
    one, other = pool.lease("a", [SIZE, SIZE])
    pool.give_back("a", [one, one])
    (mine,) = pool.lease("b", [SIZE])
    pool.give_back("a", [one, mine, "fffffffffff"])  # a name that is over, another request's, and nobody's
    pool.give_back("unknown", [mine, other])
    finish(pool, "unknown")
    assert {name for name in (one, other, mine) if (owner.root / name).exists()} == {other, mine}
    for _ in range(2):
        finish(pool, "a")
    pool.give_back("a", [mine])
    roundtrip(owner.root, mine, SIZE)
    assert pool.stats().leases == 1


def test_a_request_may_lease_again_after_it_was_retired(pool: Pool, owner: Owner) -> None:
    (first,) = pool.lease("a", [SIZE])
    pool.retire("a")
    (second,) = pool.lease("a", [SIZE])
    pool.settle("a")
    roundtrip(owner.root, second, SIZE)
    assert path_file(owner.root, owner.name, "a").read_text() == f"{second}\n"
    finish(pool, "a")
    assert pool.stats().leases == 0


def test_what_never_fits_and_what_does_not_fit_now(pool: Pool, owner: Owner) -> None:
    with pytest.raises(NeverFits):
        pool.lease("a", [4 * UNIT])
    with pytest.raises(NeverFits):
        pool.lease("a", [SIZE] * 5)
    pool.lease("b", [SIZE] * 2)
    with pytest.raises(PoolFull) as caught:
        pool.lease("a", [SIZE] * 3)
    assert 1 <= caught.value.retry_after < 60
    assert pool.stats().leases == 2 and files(owner.root, ".paths") == [f"{owner.name}.b.paths"]
    pool.lease("a", [SIZE] * 2)
    assert pool.stats().total_bytes == 4 * UNIT


def test_retry_after_follows_how_long_leases_last(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for i in range(40):
        pool.lease(f"r{i}", [SIZE] * 4)
        now[0] += 20
        finish(pool, f"r{i}")
    pool.lease("last", [SIZE] * 4)
    with pytest.raises(PoolFull) as caught:
        pool.lease("more", [SIZE])
    assert 15 < caught.value.retry_after <= 20


def test_whether_a_request_fits_depends_on_bytes_in_use_only(pool: Pool, owner: Owner) -> None:
    pool.lease("big", [4 * UNIT - 4096])
    finish(pool, "big")
    small = pool.lease("small", [10])  # sits in the one large file
    roundtrip(owner.root, small[0], 10)
    assert pool.stats().total_bytes == 4 * UNIT
    names = pool.lease("more", [SIZE] * 3)  # so that file is cut, not this request refused
    for name in (*names,):
        roundtrip(owner.root, name, SIZE)
    assert read_segment(owner.root, small[0], (10,), np.uint8).size == 10
    assert pool.stats().total_bytes == on_disk(owner.root) <= 4 * UNIT


def test_the_smallest_file_that_is_long_enough_is_lent(pool: Pool, owner: Owner) -> None:
    names = pool.lease("a", [8 * KIB, 30 * KIB, 60 * KIB])
    inodes = [(owner.root / name).stat().st_ino for name in names]
    finish(pool, "a")
    (name,) = pool.lease("b", [20 * KIB])
    assert (owner.root / name).stat().st_ino == inodes[1]


def test_the_largest_idle_file_grows_instead_of_another_being_made(pool: Pool, owner: Owner) -> None:
    names = pool.lease("a", [8 * KIB, 30 * KIB])
    inode = (owner.root / names[1]).stat().st_ino
    finish(pool, "a")
    (name,) = pool.lease("b", [60 * KIB])
    assert (owner.root / name).stat().st_ino == inode
    assert pool.stats().segments == 2
    found = (owner.root / name).stat()
    assert found.st_size == UNIT and found.st_blocks * 512 >= UNIT
    roundtrip(owner.root, name, 60 * KIB)


def test_the_largest_item_takes_the_largest_file_wherever_it_stands(pool: Pool, owner: Owner) -> None:
    pool.lease("a", [8 * KIB, 60 * KIB])
    finish(pool, "a")
    before = pool.stats().total_bytes
    for name, nbytes in zip(pool.lease("b", [9 * KIB, 60 * KIB]), (9 * KIB, 60 * KIB), strict=True):
        roundtrip(owner.root, name, nbytes)
    assert pool.stats().total_bytes <= before + 4 * KIB  # only the small file grew


def test_the_owner_file_does_not_grow_when_files_are_evicted_and_made_again(pool: Pool, owner: Owner) -> None:
    for i in range(12):
        pool.lease(f"many{i}", [10] * 10)
        finish(pool, f"many{i}")
        pool.lease(f"one{i}", [4 * UNIT - 4096])
        finish(pool, f"one{i}")
    assert (owner.root / f"{owner.name}.owner").stat().st_size <= 17 * 11


def test_equal_load_does_not_grow_the_pool(owner: Owner) -> None:
    pool = Pool(owner, 64 * UNIT)
    sizes = [SIZE, 10, 3 * SIZE, SIZE]

    def round_of(tag: str, killed: bool) -> int:
        for i in range(8):
            names = pool.lease(f"{tag}{i}", sizes)
            if not killed:
                pool.give_back(f"{tag}{i}", names[:2])
        for i in range(8):
            finish(pool, f"{tag}{i}")
        return pool.stats().total_bytes

    totals = {round_of(f"r{n}-", killed=n % 2 == 0) for n in range(8)}
    assert len(totals) == 1
    assert (owner.root / f"{owner.name}.owner").stat().st_size == 17 * pool.stats().segments


def test_names_are_recorded_before_files_lie_under_them(
    pool: Pool, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_rename, real_open, seen = os.rename, os.open, []

    def rename(source: Path, target: Path) -> None:
        if target.suffix == "":
            assert target.name in path_file(owner.root, owner.name, "a").read_text().split()
            seen.append("rename")
        real_rename(source, target)

    def create(file: Path, flags: int, mode: int = 0o777) -> int:
        if Path(file).suffix == ".idle" and flags & os.O_CREAT:
            assert Path(file).name in (owner.root / f"{owner.name}.owner").read_text().split()
            seen.append("create")
        return real_open(file, flags, mode)

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "open", create)
    pool.lease("a", [10, 20])
    assert seen == ["create", "rename"] * 2


@pytest.mark.parametrize("request_id", ["", "a/b", "..", "a.b", "a\n", "a b", "x" * 129])
def test_request_ids_that_are_no_file_names_are_refused(pool: Pool, request_id: str) -> None:
    with pytest.raises(ValueError):
        pool.lease(request_id, [1])


def test_sizes_below_one_are_refused_and_none_is_no_lease(pool: Pool, owner: Owner) -> None:
    with pytest.raises(ValueError):
        pool.lease("a", [10, 0])
    assert pool.lease("a", []) == ()
    assert files(owner.root, ".paths") == []


def test_threads_may_share_a_pool(pool: Pool, owner: Owner) -> None:
    def work(tag: int) -> int:
        done = 0
        for i in range(60):
            with contextlib.suppress(PoolFull):
                names = pool.lease(f"t{tag}-{i}", [SIZE // 2, 10])
                roundtrip(owner.root, names[1], 10)
                pool.give_back(f"t{tag}-{i}", names[:1])
                finish(pool, f"t{tag}-{i}")
                done += 1
        return done

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(work, range(4))) > 60
    assert pool.stats().leases == 0 and pool.stats().total_bytes == on_disk(owner.root) <= 4 * UNIT
