"""The sweep after dead owners, with real processes that are killed, and never of a live one."""

import fcntl
import os
import shutil
import signal
import socket
import time
import tracemalloc
from pathlib import Path

import pytest

from shm import Owner, SweepReport, sweep, sweep_if_last
from shm.sweep import AT_ONCE, sweep_empty, sweep_in_parts
from tests.shm.conftest import Spawn, left_in, line_of, put

OWN = """
import os, subprocess, sys
from pathlib import Path
from shm import Owner, Pool
owner = Owner.claim(Path(sys.argv[1]))
pool = Pool(owner, 1 << 20)
pool.lease("one", [5000, 6000])
pool.lease("two", [7000])
pool.retire("two")
pool.settle("two")
if len(sys.argv) > 2:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[2]], pass_fds=[owner.fileno()], stdout=subprocess.PIPE)
    child.stdout.readline()
    print(child.pid, flush=True)
else:
    print(owner.name, flush=True)
sys.stdin.read()
"""


def wait_gone(pid: int) -> None:
    """Until a process that is nobody's child here has ended."""
    for _ in range(1200):
        if not Path(f"/proc/{pid}/fd").exists() or not os.listdir(f"/proc/{pid}/fd"):
            return
        time.sleep(0.05)
    raise AssertionError("the process lives on")


def test_a_sweep_of_nothing(tmp_path: Path) -> None:
    assert sweep(tmp_path / "missing") == SweepReport()
    (tmp_path / "empty").mkdir(mode=0o700)
    assert sweep(tmp_path / "empty") == SweepReport()
    assert not (tmp_path / "empty").exists()


def test_a_sweep_frees_nothing_of_a_live_owner_also_in_the_same_process(owner: Owner) -> None:
    name = put(owner)
    assert sweep(owner.root) == SweepReport()
    assert (owner.root / name).exists()


def test_a_second_sweeper_that_comes_too_late_reports_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner.claim(root)
    put(owner)
    os.close(owner.fileno())
    real = fcntl.flock
    first: list[SweepReport] = []

    def flock(fd: int, operation: int) -> None:
        if not first:  # between the second one's open and its lock
            monkeypatch.setattr(fcntl, "flock", real)
            first.append(sweep(root))
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert sweep(root) == SweepReport()
    assert first[0].owners == 1 and not root.exists()


def test_strangers_files_are_left_alone(owner: Owner, tmp_path: Path) -> None:
    root = owner.root
    strangers = ["0123456789a", "0123456789a.idle", "0123456789abcdef.request.paths", "README", "x.owner"]
    for name in strangers:
        (root / name).write_text("")
    (root / "00000000000").mkdir()
    sweep(root)
    assert set(strangers) < set(os.listdir(root))
    for name in strangers:
        (root / name).unlink()
    (root / "00000000000").rmdir()


def test_a_list_that_is_no_list_frees_nothing_outside(root: Path, tmp_path: Path) -> None:
    root.mkdir(mode=0o700)
    (tmp_path / "precious").write_text("")
    (root / "0123456789abcdef.owner").write_text("../precious\n/etc/hostname\n0123456789a/../../precious\n")
    (root / "0123456789abcdef.request.paths").write_text("../precious\n")
    assert sweep(root) == SweepReport(owners=1)
    assert (tmp_path / "precious").exists()


@pytest.mark.process
def test_a_killed_owner_is_swept(root: Path, spawn: Spawn) -> None:
    child = spawn(OWN, root)
    name = line_of(child)
    assert sweep(root) == SweepReport()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert len([*root.glob(f"{name}.*.paths")]) == 1
    report = sweep(root)
    assert (report.owners, report.segments) == (1, 3)
    assert report.bytes >= 18000
    assert not root.exists()


@pytest.mark.process
def test_a_childs_hold_keeps_the_owner_alive(root: Path, spawn: Spawn) -> None:
    owner = spawn(OWN, root, "import sys, time; print('up', flush=True); time.sleep(60)")
    pid = int(line_of(owner))
    before = sorted(os.listdir(root))
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert sweep(root) == SweepReport()
    assert sorted(os.listdir(root)) == before
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)
    assert sweep(root).segments == 3


@pytest.mark.process
def test_two_owners_on_one_root_outlive_each_other(root: Path, spawn: Spawn) -> None:
    one, other = spawn(OWN, root), spawn(OWN, root)
    line_of(one), line_of(other)
    assert sweep(root) == SweepReport()
    one.kill()
    one.wait()
    assert sweep(root).segments == 3
    assert len(os.listdir(root)) == 5  # the other's lock, path file and three segments
    assert sweep(root) == SweepReport()
    other.kill()
    other.wait()
    assert sweep(root).segments == 3


def test_the_last_holder_sweeps_and_no_earlier_one(root: Path) -> None:
    owner = Owner.claim(root)
    put(owner)
    holds = [os.dup(owner.fileno()) for _ in range(3)]  # as three children have it: the same lock
    os.close(owner.fileno())
    before = sorted(os.listdir(root))
    for fd in holds[:2]:
        sweep_if_last(root, fd, owner.name)
        assert sorted(os.listdir(root)) == before
    sweep_if_last(root, holds[2], owner.name)
    assert not root.exists()


def test_the_last_holder_sweeps_no_other_owner(root: Path) -> None:
    dead = Owner.claim(root)
    other = put(dead)
    os.close(dead.fileno())
    owner = Owner.claim(root)
    put(owner)
    sweep_if_last(root, owner.fileno(), owner.name)
    assert sorted(os.listdir(root)) == sorted([f"{dead.name}.owner", other])
    assert sweep(root).segments == 1


def test_removing_empty_owners_keeps_dead_ones_with_segments(root: Path) -> None:
    empty, full = Owner.claim(root), Owner.claim(root)
    gone, name = put(empty), put(full)
    os.unlink(root / gone)
    os.close(empty.fileno())
    os.close(full.fileno())
    sweep_empty(root)
    assert sorted(os.listdir(root)) == sorted([f"{full.name}.owner", name])
    sweep(root)


def test_the_leak_check_of_these_tests_sees_a_planted_leak(root: Path) -> None:
    owner = Owner.claim(root)
    name = put(owner)
    assert left_in(root) == ["root: a lease"]
    os.close(owner.fileno())
    assert set(left_in(root)) == {"root: a lease", "root: the owner file of a dead owner"}
    sweep(root)
    assert not (root / name).exists()
    root.mkdir()
    assert left_in(root) == ["root itself"]
    root.rmdir()


RACE = """
import os, random, sys
from pathlib import Path
from shm import Owner, sweep
from shm.segment import create_file, fresh_name
root = Path(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(50):
    owner = Owner.claim(root)
    name = fresh_name(root)
    owner.record(name); os.close(create_file(root / name, 8192))
    for _ in range(random.randrange(3)):
        sweep(root)
    assert (root / f"{owner.name}.owner").exists(), "a live owner's lock file was swept"
    assert (root / name).exists(), "a live owner's segment was swept"
    if random.random() < 0.3:
        os.close(owner.fileno())  # as if this process had died
    else:
        owner.close()
print("survived", flush=True)
"""


@pytest.mark.process
def test_claims_closes_and_sweeps_race_and_no_live_owner_loses_anything(root: Path, spawn: Spawn) -> None:
    children = [spawn(RACE, root) for _ in range(4)]
    assert [line_of(child) for child in children] == ["ready"] * 4
    for child in children:
        print(file=child.stdin, flush=True)
    assert [line_of(child) for child in children] == ["survived"] * 4
    sweep(root)


def odd_entries(root: Path) -> list[str]:
    """One of each kind, under names of owner files."""
    names = [f"{i:016x}.owner" for i in range(5)]
    paths = [root / name for name in names]
    paths[0].mkdir()
    paths[1].symlink_to("/etc/hostname")
    os.mkfifo(paths[2])
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(paths[3]))
    paths[4].symlink_to(root)
    return names


def test_odd_entries_are_told_and_left_alone(root: Path) -> None:
    """Also those that pass for path files of a dead owner: a pipe would wait for its writer for ever."""
    dead = Owner.claim(root)
    put(dead)
    os.close(dead.fileno())
    names = odd_entries(root)
    os.mkfifo(root / f"{dead.name}.one.paths")
    (root / f"{dead.name}.two.paths").mkdir()
    report = sweep(root)
    assert (report.owners, report.segments, sorted(report.odd)) == (1, 1, names)
    assert sorted(os.listdir(root)) == sorted([*names, f"{dead.name}.two.paths"])
    shutil.rmtree(root)


ODD = [(b"", 0), (b"\xff\xfe" * 50_000, 0), (b"ab " * 1_000_000, 0), (b"q" * 9_000_000, 0), (b"q" * 9000, 1 << 40)]


@pytest.mark.slow
@pytest.mark.parametrize(("content", "length"), ODD, ids=["empty", "no text", "words", "one word", "1 TiB"])
def test_files_of_any_size_and_content_in_the_place_of_lists_are_survived(
    root: Path, content: bytes, length: int
) -> None:
    """One of 1 TiB without blocks ended the server: its sweep asked for as much memory."""
    dead = Owner.claim(root)
    name = put(dead)
    os.close(dead.fileno())
    for path in (root / f"{dead.name}.one.paths", root / f"{'0' * 16}.owner"):
        path.write_bytes(content)
        os.truncate(path, max(length, len(content)))
    os.truncate(root / f"{dead.name}.owner", max(length, 4096))
    tracemalloc.start()
    report = sweep(root)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (report.owners, report.segments, root.exists()) == (2, 1, False), name
    assert most < 40 << 20


def test_a_live_owner_whose_file_somebody_fills_closes_and_frees_all(root: Path) -> None:
    owner = Owner.claim(root)
    put(owner)
    os.truncate(root / f"{owner.name}.owner", 1 << 40)
    owner.close()
    assert not root.exists()


def test_many_dead_owners_cost_each_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is listed once for all that are swept at once, and no more of them are open."""
    for _ in range(1000):
        os.close(Owner.claim(root).fileno())
    full = Owner.claim(root)
    put(full)
    os.close(full.fileno())
    (root / f"{full.name}.one.paths").write_text("0123456789a\n")
    (root / "0123456789a").write_text("")
    listings: list[int] = []
    real = os.listdir

    def listdir(path: Path) -> list[str]:
        listings.append(len(real("/proc/self/fd")))
        return real(path)

    before = len(real("/proc/self/fd"))
    monkeypatch.setattr(os, "listdir", listdir)
    parts = list(sweep_in_parts(root))
    assert [part.owners for part in parts] == [AT_ONCE] * (1001 // AT_ONCE) + [1001 % AT_ONCE]
    assert sum(part.segments for part in parts) == 2 and not root.exists()
    assert len(listings) == 1 + len(parts) and max(listings) <= before + AT_ONCE
