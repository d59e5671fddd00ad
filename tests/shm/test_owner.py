"""Owners: the directory, the lock and the list."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from shm import Owner, OwnerError, SweepReport, default_root, room, sweep
from shm.ledger import Ledger
from shm.owner import path_file
from shm.segment import SegmentFull, fresh_name
from tests.shm.conftest import put


def test_the_default_root_is_the_users_own() -> None:
    assert default_root() == Path(f"/dev/shm/pixelferry-{os.geteuid()}")


def test_an_owner_makes_a_private_directory_and_takes_it_along(root: Path) -> None:
    owner = Owner.claim(root)
    assert root.stat().st_mode & 0o777 == 0o700
    assert (root / f"{owner.name}.owner").stat().st_mode & 0o777 == 0o600
    assert not os.get_inheritable(owner.fileno())
    owner.close()
    assert not root.exists()
    owner.close()


def test_closing_removes_everything_of_this_owner_and_nothing_of_another(root: Path) -> None:
    one, other = Owner.claim(root), Owner.claim(root)
    mine, theirs = put(one), put(other)
    with Ledger.open(path_file(root, one.name, "request")) as ledger:
        lease = fresh_name(root)
        ledger.append([lease])
        os.rename(root / mine, root / lease)
    one.close()
    assert sorted(os.listdir(root)) == sorted([f"{other.name}.owner", theirs])
    other.close()


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o500])
def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(mode)
    for refuse in (Owner.claim, sweep):
        with pytest.raises(OwnerError, match=f"mode 0{mode:o}; only 0700"):
            refuse(path)


def test_somebody_elses_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "theirs"
    path.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    for refuse in (Owner.claim, sweep):
        with pytest.raises(OwnerError, match="runs as 12345"):
            refuse(path)


def test_links_and_files_are_refused_as_directories(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(OwnerError, match="not a directory"):
            Owner.claim(tmp_path / name)
    with pytest.raises(OwnerError, match="cannot be created"):
        Owner.claim(tmp_path / "missing" / "root")


def test_lines_of_forgotten_names_are_written_again(owner: Owner) -> None:
    file = owner.root / f"{owner.name}.owner"
    names = [put(owner) for _ in range(5)]
    size = file.stat().st_size
    for _ in range(50):
        name = names.pop(0)
        os.unlink(owner.root / name)
        owner.forget(name)
        names.append(put(owner))
    assert file.stat().st_size == size
    assert sorted(file.read_text().split()) == sorted(names)


def test_only_names_that_a_sweep_frees_are_recorded(owner: Owner) -> None:
    for name in ("../x", "0123456789a.other", "0123456789", "0123456789a "):
        with pytest.raises(ValueError):
            owner.record(name)


def test_nothing_is_recorded_where_no_sweeper_would_find_it(owner: Owner) -> None:
    (owner.root / f"{owner.name}.owner").unlink()
    with pytest.raises(OwnerError):
        owner.record("0123456789a")


def test_a_full_disk_while_recording(small_disk: Path) -> None:
    owner = Owner.claim(small_disk / "root")
    with open(small_disk / "filler", "wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, os.statvfs(small_disk).f_bavail * 4096)
    with pytest.raises(SegmentFull):
        owner.record("0123456789a")
    (small_disk / "filler").unlink()
    owner.record("0123456789a")
    owner.close()


def test_a_sweeper_that_takes_the_lock_first_costs_a_claim_only_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    swept: list[SweepReport | None] = []

    def flock(fd: int, operation: int) -> None:
        if not swept:  # between the claim's open and its lock
            swept.append(None)
            swept[0] = sweep(root)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    owner = Owner.claim(root)
    assert swept == [SweepReport(owners=1)]
    assert os.listdir(root) == [f"{owner.name}.owner"]
    assert sweep(root) == SweepReport()
    owner.close()


def test_a_lock_held_for_a_moment_by_an_onlooker_costs_a_claim_only_its_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    refused: list[int] = []

    def flock(fd: int, operation: int) -> None:
        if not refused:
            refused.append(fd)
            raise BlockingIOError
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    owner = Owner.claim(root)
    assert os.listdir(root) == [f"{owner.name}.owner"]
    owner.close()


def test_the_room_of_a_file_system(owner: Owner, small_disk: Path) -> None:
    assert room(small_disk) == shutil.disk_usage(small_disk).total


def test_a_file_system_without_a_limit_has_room_for_any_pool(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tmpfs of size=0 and ramfs say that they have no blocks."""
    real = os.statvfs("/")
    endless = os.statvfs_result((*real[:2], 0, 0, 0, *real[5:]))
    assert (endless.f_blocks, endless.f_frsize) == (0, real.f_frsize)
    monkeypatch.setattr(os, "statvfs", lambda path: endless)
    assert room(root) >= 1 << 60
