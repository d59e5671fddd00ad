"""Owners: the directory, the lock and the list."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from shm import Owner, OwnerError, SweepReport, default_root, private_root, room, sweep
from shm.ledger import Ledger, path_file
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


@pytest.mark.process
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


@pytest.mark.process
def test_the_room_of_a_file_system(owner: Owner, small_disk: Path) -> None:
    assert room(small_disk) == shutil.disk_usage(small_disk).total


def test_a_file_system_without_a_limit_has_room_for_any_pool(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tmpfs of size=0 and ramfs say that they have no blocks."""
    real = os.statvfs("/")
    endless = os.statvfs_result((*real[:2], 0, 0, 0, *real[5:]))
    assert (endless.f_blocks, endless.f_frsize) == (0, real.f_frsize)
    monkeypatch.setattr(os, "statvfs", lambda path: endless)
    assert room(root) >= 1 << 60


# ---- a root that others may enter


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory as Kubernetes mounts an emptyDir."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o777)
    return path


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o2777, 0o750])
def test_a_root_that_others_may_enter_is_used_through_our_own_directory(tmp_path: Path, mode: int) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    root = private_root(shared)
    assert root == shared / f"pixelferry-{os.geteuid()}"
    owner = Owner.claim(root)
    put(owner)
    assert os.listdir(shared) == [root.name] and root.stat().st_mode & 0o777 == 0o700
    assert shared.stat().st_mode & 0o7777 == mode
    owner.close()
    assert os.listdir(shared) == []


def test_a_private_or_missing_root_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/")  # whoever may replace a link may lead us anywhere
    for name in ("mine", "missing", "file", "link", "missing/further"):
        assert private_root(tmp_path / name) == tmp_path / name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_directory_that_somebody_else_made_first_is_refused(shared: Path, mode: int) -> None:
    shared.chmod(mode)
    root = private_root(shared)
    root.mkdir(mode=0o700)
    os.chown(root, 12345, 12345)
    for refuse in (Owner.claim, sweep):
        with pytest.raises(OwnerError, match=rf"^{root} belongs to user 12345, .*: remove it, or name another"):
            refuse(root)
    assert os.listdir(root) == []


def test_a_link_or_an_open_directory_in_the_place_of_ours_is_refused(shared: Path, tmp_path: Path) -> None:
    root = private_root(shared)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OwnerError, match="is not a directory"):
        Owner.claim(root)
    root.unlink()
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(OwnerError, match="has mode 0777; only 0700"):
        Owner.claim(root)
    assert os.listdir(tmp_path / "elsewhere") == os.listdir(root) == []


def test_a_directory_that_is_put_in_the_place_of_ours_later_gets_no_segment(shared: Path) -> None:
    """Without the sticky bit anybody may rename what lies in a shared directory."""
    root = private_root(shared)
    owner = Owner.claim(root)
    root.rename(shared / "taken-away")
    root.mkdir(mode=0o777)
    (root / f"{owner.name}.owner").touch()
    with pytest.raises(OwnerError, match="has mode 0755"):
        put(owner)
    root.chmod(0o700)
    with pytest.raises(OwnerError, match="the owner file was removed by somebody"):
        put(owner)
    shutil.rmtree(root)
    (shared / "taken-away").rename(root)
    owner.close()


def test_an_owner_lists_no_more_than_a_sweep_reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shm.owner.MOST_LISTED", 2 * 17)
    owner = Owner.claim(root)
    for name in ("00000000000", "00000000001"):
        owner.record(name)
    with pytest.raises(SegmentFull, match="at most 2 segments"):
        owner.record("00000000002")
    owner.forget("00000000000")
    owner.record("00000000002")
    owner.close()
