"""Reading and writing one segment, also while somebody deletes, replaces or cuts it."""

import mmap
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shm import (
    SegmentError,
    SegmentFull,
    SegmentGone,
    SegmentMismatch,
    disk_under,
    read_segment,
    write_segment,
)
from shm.segment import HEADER, create_file, file_bytes, fresh_name, stamp
from tests.tables import each_of

SHAPE = (6, 700)
DATA = np.arange(4200, dtype=np.float32).reshape(SHAPE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A bare directory: these tests know no owners."""
    return tmp_path


@pytest.fixture
def name(root: Path) -> str:
    """A segment that holds DATA."""
    name = fresh_name(root)
    fd = create_file(root / name, file_bytes(DATA.nbytes))
    stamp(fd, name, DATA.nbytes)
    os.close(fd)
    write_segment(root, name, DATA)
    return name


@pytest.fixture(autouse=True)
def no_descriptor_left() -> Iterator[None]:
    """Every path through this module closes what it opens."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


def delete(root: Path, name: str) -> None:
    os.unlink(root / name)


def replace(root: Path, name: str) -> None:
    shutil.copyfile(root / name, root / "copy")
    os.replace(root / "copy", root / name)


def rename(root: Path, name: str) -> None:
    os.rename(root / name, root / f"{name}.idle")


def cut(root: Path, name: str) -> None:
    os.truncate(root / name, HEADER + 10)


def test_an_array_comes_back_as_a_private_writable_copy(root: Path, name: str) -> None:
    copy = read_segment(root, name, SHAPE, np.float32)
    assert copy.dtype == np.float32 and copy.flags.writeable
    np.testing.assert_array_equal(copy, DATA)
    copy[:] = 0
    np.testing.assert_array_equal(read_segment(root, name, (4200,), "<f4"), DATA.reshape(-1))
    assert read_segment(root, name, (DATA.nbytes,), np.uint8).tobytes() == DATA.tobytes()


def test_a_strided_array_is_written_as_it_reads(root: Path, name: str) -> None:
    write_segment(root, name, np.asfortranarray(DATA) + 1)
    write_segment(root, name, np.asfortranarray(DATA))
    np.testing.assert_array_equal(read_segment(root, name, SHAPE, np.float32), DATA)


def test_the_file_is_private_and_its_data_page_aligned(root: Path, name: str) -> None:
    found = os.stat(root / name)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_size % 4096 == 0 and found.st_blocks * 512 >= found.st_size
    assert (root / name).read_bytes()[HEADER:][: DATA.nbytes] == DATA.tobytes()


@each_of("nbytes", [1, 4095, 4096, 4097, 65536, 1 << 20])
def test_sizes_of_files_are_the_fewest_whole_pages(nbytes: int) -> None:
    size = file_bytes(nbytes)
    assert size % mmap.PAGESIZE == 0 and 0 <= size - HEADER - nbytes < mmap.PAGESIZE
    with pytest.raises(ValueError):
        file_bytes(0)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((6, 699), "f4"), ((6, 701), "f4"), (SHAPE, "u1"), (SHAPE, "f8"), ((1 << 43,), "f8")]
)
def test_the_bytes_must_be_exactly_the_recorded_ones(root: Path, name: str, shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(SegmentMismatch):
        read_segment(root, name, shape, dtype)


def test_a_writer_must_bring_exactly_the_recorded_bytes(root: Path, name: str) -> None:
    for array in (DATA[:5], DATA.astype("f8"), np.zeros((7, 700), np.float32)):
        with pytest.raises(SegmentMismatch):
            write_segment(root, name, array)
    np.testing.assert_array_equal(read_segment(root, name, SHAPE, np.float32), DATA)


@pytest.mark.parametrize(
    ("harm", "error"), [(delete, SegmentGone), (rename, SegmentGone), (cut, SegmentMismatch), (replace, None)]
)
def test_harm_before_a_read_or_write(
    root: Path, name: str, harm: Callable[[Path, str], None], error: type[Exception] | None
) -> None:
    harm(root, name)
    if error is None:  # a whole copy under the right name cannot be told from the segment
        np.testing.assert_array_equal(read_segment(root, name, SHAPE, np.float32), DATA)
        return
    with pytest.raises(error):
        read_segment(root, name, SHAPE, np.float32)
    with pytest.raises(error):
        write_segment(root, name, DATA)


@pytest.mark.parametrize(
    ("harm", "error"), [(delete, SegmentGone), (rename, SegmentGone), (replace, SegmentGone), (cut, SegmentMismatch)]
)
def test_harm_in_the_middle_of_a_read(
    root: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Path, str], None],
    error: type[Exception],
) -> None:
    real, calls = os.preadv, []

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(offset)
        if len(calls) == 2:
            harm(root, name)
        return real(fd, [buffers[0][:4096]], offset)  # a short read, as the system may give one

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(error):
        read_segment(root, name, SHAPE, np.float32)
    assert len(calls) >= 2


def test_harm_in_the_middle_of_a_write(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def pwritev(fd: int, buffers: list[memoryview], offset: int) -> int:
        if (root / name).exists():
            rename(root, name)
        return real(fd, [buffers[0][:4096]], offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    with pytest.raises(SegmentGone):
        write_segment(root, name, DATA)


def test_short_reads_and_writes_are_continued(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: read(fd, [buffers[0][:1000]], offset))
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: write(fd, [buffers[0][:1000]], offset))
    write_segment(root, name, DATA * 2)
    np.testing.assert_array_equal(read_segment(root, name, SHAPE, np.float32), DATA * 2)


def test_the_record_names_its_lease(root: Path, name: str) -> None:
    other = fresh_name(root)
    os.rename(root / name, root / other)
    with pytest.raises(SegmentMismatch):
        read_segment(root, other, SHAPE, np.float32)


@pytest.mark.parametrize("text", [b"", b"x" * 8192])
def test_a_file_that_is_no_segment_is_refused(root: Path, text: bytes) -> None:
    (root / "00000000000").write_bytes(text)
    with pytest.raises(SegmentMismatch):
        read_segment(root, "00000000000", SHAPE, np.float32)


def test_links_pipes_and_directories_are_refused(root: Path, name: str) -> None:
    (root / "00000000001").symlink_to(root / name)
    os.mkfifo(root / "00000000002")
    (root / "00000000003").mkdir()
    for other in ("00000000001", "00000000002", "00000000003", "../" + name[:8], f"{name}.idle", "/etc/passwd"):
        with pytest.raises(SegmentError):
            read_segment(root, other, SHAPE, np.float32)


def test_errors_tell_neither_name_nor_path(root: Path, name: str) -> None:
    (root / "00000000001").symlink_to(root / name)
    for other, shape in ((name, (1,)), ("ffffffffff0", SHAPE), ("00000000001", SHAPE)):
        with pytest.raises(SegmentError) as caught:
            read_segment(root, other, shape, np.float32)
        assert other not in str(caught.value) and str(root) not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_objects_are_refused(root: Path, name: str) -> None:
    with pytest.raises(ValueError):
        read_segment(root, name, SHAPE, object)
    with pytest.raises(ValueError):
        write_segment(root, name, np.array([None]))


@pytest.mark.process
def test_a_full_disk_is_an_error_and_leaves_nothing(small_disk: Path) -> None:
    with pytest.raises(SegmentFull):
        create_file(small_disk / "00000000000", 3 << 20)
    assert os.listdir(small_disk) == []


def test_a_taken_name_is_refused_and_kept(root: Path, name: str) -> None:
    with pytest.raises(SegmentError):
        create_file(root / name, 8192)
    np.testing.assert_array_equal(read_segment(root, name, SHAPE, np.float32), DATA)


def test_what_lies_in_memory_is_told_from_what_does_not() -> None:
    assert disk_under(Path("/dev/shm")) is None and disk_under(Path("/proc/self")) == "proc"
