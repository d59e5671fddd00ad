"""Path files: what is recorded comes back, what is torn is passed over, what is somebody else's file is left alone."""

import os
import threading
from pathlib import Path

import pytest

from shm import SegmentError
from shm.ledger import Ledger, names_in

A, B, C = "0123456789a", "aaaaaaaaaaa", "00000000000"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "paths"


def test_names_are_appended_and_found_again(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.append([A, B])
    with Ledger.open(path) as ledger:
        assert ledger.names == (A, B)
        ledger.append([C])
    assert path.read_text() == f"{A}\n{B}\n{C}\n"
    assert names_in(path) == (A, B, C)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_appended_can_be_taken_back(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.append([A])
    with Ledger.open(path) as ledger:
        ledger.append([B])
        ledger.undo()
    assert path.read_text() == f"{A}\n"


def test_taking_back_the_first_names_removes_the_file(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.append([A])
        ledger.undo()
    assert not path.exists()


@pytest.mark.parametrize(("text", "names"), [(f"{A}\n012345", (A,)), (f"{A}\n{B}", (A, B)), ("0", ()), (A, (A,))])
def test_a_torn_last_line_harms_no_other(path: Path, text: str, names: tuple[str, ...]) -> None:
    path.write_text(text)
    with Ledger.open(path) as ledger:
        assert ledger.names == names
        ledger.append([C])
    assert names_in(path) == (*names, C)


@pytest.mark.parametrize(
    "text", ["my diary\n", f"{A}\n\n{B}\n", f"{A}\n../../x\n", f"{A} {B}\n", f"{A}\n{B}0", "\n", "é"]
)
def test_somebody_elses_file_is_refused_and_left_as_it_is(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(SegmentError):
        Ledger.open(path)
    assert path.read_text() == text


def test_nothing_is_found_where_nothing_is(path: Path) -> None:
    assert Ledger.find(path) is None
    assert names_in(path) == ()
    assert not path.exists()


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    path.symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        Ledger.open(path)


def test_who_waits_for_a_file_that_is_removed_begins_a_new_one(path: Path) -> None:
    ledger = Ledger.open(path)
    ledger.append([A])
    waiter = threading.Thread(target=append, args=(path, B))
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()
    ledger.remove()
    ledger.close()
    waiter.join(60)
    assert names_in(path) == (B,)


def append(path: Path, name: str) -> None:
    with Ledger.open(path) as ledger:
        ledger.append([name])


def test_no_descriptor_is_left_after_an_error(path: Path) -> None:
    path.write_text("no names")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SegmentError):
        Ledger.open(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_no_path_file_can_be_is_refused_unread(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(SegmentError, match="not a path file"):
        Ledger.open(path)
    assert path.stat().st_size == 1 << 40
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SegmentError, match="not a path file"):
        Ledger.open(path)
