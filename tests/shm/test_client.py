"""The protocol without a server: the published listing, release from anywhere, and what a killed caller leaves."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shm import (
    Owner,
    OwnerError,
    Pool,
    SegmentError,
    SegmentFull,
    SegmentGone,
    SegmentMismatch,
    WordError,
    create_shm,
    decode_shm_name_from_int64,
    default_root,
    encode_shape_to_int64,
    encode_shm_name_to_int64,
    get_data_from_shm,
    read_segment,
    release_shared_memory,
    sweep,
)
from shm.segment import HEADER
from tests.shm.conftest import REPO, Spawn, line_of, used_bytes

LISTING = """
shm = create_shm(pixels.nbytes, shm_name_save_path)          # works with no server running; .name, .buf
np.ndarray(pixels.shape, dtype=np.float32, buffer=shm.buf)[:] = pixels
ids[start + 1] = encode_shm_name_to_int64(shm.name)
ids[start + 2] = encode_shape_to_int64(pixels.shape)         # 1 to 5 dimensions
...
name_word, shape_word = ids[start + 1], ids[start + 2]
pixels = get_data_from_shm(name_word, shape_word, np.float32, device)      # a torch tensor; torch is imported inside
"""

CREATE = """
import os, sys
from pathlib import Path
from typing import Any
import numpy as np
from shm import create_shm
root, path, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for i in range(count):
    shm = create_shm(4 * 10, path, root)
    np.ndarray((10,), np.float32, buffer=shm.buf)[:] = i
    print(shm.name, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shm_name.txt"


def listed(root: Path) -> list[str]:
    return sorted(os.listdir(root)) if root.exists() else []


def test_the_listing_runs_as_published_with_the_default_root(path: Path) -> None:
    before = set(listed(default_root()))
    pixels = np.random.default_rng(0).standard_normal((5, 1176)).astype(np.float32)
    here: dict[str, Any] = {
        **{"np": np, "pixels": pixels, "shm_name_save_path": path, "ids": np.zeros(9, np.int64), "start": 3},
        **{"device": "cpu", "create_shm": create_shm, "get_data_from_shm": get_data_from_shm},
        **{"encode_shm_name_to_int64": encode_shm_name_to_int64, "encode_shape_to_int64": encode_shape_to_int64},
    }
    try:
        exec(LISTING, here)
        assert (here["ids"] < 0).sum() == 2
        assert isinstance(here["pixels"], torch.Tensor)
        np.testing.assert_array_equal(here["pixels"].numpy(), pixels)
        name = path.read_text().strip()
        assert (default_root() / name).exists()
    finally:
        freed = release_shared_memory(path)
    assert freed == 1
    assert not path.exists() and not (default_root() / name).exists()
    assert not [new for new in set(listed(default_root())) - before if new.endswith(".owner") and owned(new)]


def owned(name: str) -> bool:
    """Whether this process has this owner file open."""
    links = (os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path))
    return any(link.endswith(name) for link in links if "/" in link)


def test_the_buffer_is_exactly_the_bytes_and_page_aligned(root: Path, path: Path) -> None:
    shm = create_shm(np.int64(10_001), path, root)
    assert shm.size == len(shm.buf) == 10_001 and not shm.buf.readonly
    assert np.frombuffer(shm.buf, np.uint8).__array_interface__["data"][0] % 4096 == 0
    shm.buf[:3] = b"abc"
    assert (root / shm.name).read_bytes()[HEADER:][:4] == b"abc\0"
    release_shared_memory(path, root)


def test_closing_unmaps_when_the_last_array_is_gone_and_keeps_the_segment(root: Path, path: Path) -> None:
    shm = create_shm(100, path, root)
    array = np.frombuffer(shm.buf, np.uint8)
    array[:] = 7
    shm.close()
    shm.close()
    assert array.sum() == 700
    with pytest.raises(ValueError):
        _ = shm.buf
    assert shm.name in Path("/proc/self/maps").read_text()
    del array
    assert shm.name not in Path("/proc/self/maps").read_text()
    assert read_segment(root, shm.name, (100,), np.uint8).sum() == 700
    release_shared_memory(path, root)


def test_several_segments_share_a_path_file_and_are_released_at_once(root: Path, path: Path) -> None:
    names = [create_shm(nbytes, path, root).name for nbytes in (1, 5000, 70_000)]
    assert path.read_text().split() == names
    assert release_shared_memory(path, root) == 3
    assert not root.exists() and not path.exists()
    assert release_shared_memory(path, root) == 0


def test_releasing_one_path_frees_nothing_of_another(root: Path, path: Path, tmp_path: Path) -> None:
    one, other = create_shm(10, path, root), create_shm(10, tmp_path / "other", root)
    assert release_shared_memory(path, root) == 1
    assert not (root / one.name).exists() and (root / other.name).exists()
    assert release_shared_memory(tmp_path / "other", root) == 1


def test_the_name_is_recorded_twice_before_the_segment_exists(
    root: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = os.open

    def watch(file: str, flags: int, mode: int = 0o777) -> int:
        if re.fullmatch("[0-9a-f]{11}", Path(file).name) and flags & os.O_CREAT:
            (owner,) = root.glob("*.owner")
            seen.append((Path(file).name, path.read_text(), owner.read_text()))
        return real(file, flags, mode)

    monkeypatch.setattr(os, "open", watch)
    name = create_shm(10, path, root).name
    assert [(n, p.strip(), o.strip()) for n, p, o in seen] == [(name, name, name)]
    release_shared_memory(path, root)


@pytest.mark.parametrize("text", ["../../etc/passwd\n", "0123456789A\n", "0123456789a.idle\n", "dear diary"])
def test_a_file_that_holds_other_than_names_frees_nothing(root: Path, path: Path, tmp_path: Path, text: str) -> None:
    shm = create_shm(10, tmp_path / "real", root)
    path.write_text(f"{shm.name}\n{text}")
    with pytest.raises(SegmentError):
        release_shared_memory(path, root)
    with pytest.raises(SegmentError):
        create_shm(10, path, root)
    assert (root / shm.name).exists() and path.exists()
    assert release_shared_memory(tmp_path / "real", root) == 1


@pytest.mark.process
def test_another_process_reads_and_releases(root: Path, path: Path, spawn: Spawn) -> None:
    creator = spawn(CREATE + "sys.stdin.read()", root, path, 2)
    first, second = line_of(creator), line_of(creator)
    shape = encode_shape_to_int64((10,))
    tensor = get_data_from_shm(encode_shm_name_to_int64(second), shape, np.float32, "cpu", root)
    assert tensor.tolist() == [1.0] * 10
    assert release_shared_memory(path, root) == 2
    assert [name.endswith(".owner") for name in listed(root)] == [True]  # the creator lives, and may create more
    with pytest.raises(SegmentGone):
        get_data_from_shm(encode_shm_name_to_int64(first), shape, np.float32, "cpu", root)
    creator.communicate("")
    assert creator.returncode == 0
    assert not root.exists()


@pytest.mark.process
def test_a_reader_that_exits_takes_nothing_along(root: Path, path: Path) -> None:
    shm = create_shm(40, path, root)
    code = "import sys; from pathlib import Path; from shm import *; import numpy as np;"
    code += "read_segment(Path(sys.argv[1]), sys.argv[2], (10,), np.float32)"
    subprocess.run([sys.executable, "-c", code, str(root), shm.name], cwd=REPO, check=True)
    assert (root / shm.name).exists()
    release_shared_memory(path, root)


@pytest.mark.process
def test_segments_outlive_their_process_until_they_are_released(root: Path, path: Path, spawn: Spawn) -> None:
    creator = spawn(CREATE, root, path, 2)
    name = line_of(creator)
    creator.communicate("")
    assert read_segment(root, name, (10,), np.float32).sum() == 0
    assert release_shared_memory(path, root) == 2
    assert not root.exists()


@pytest.mark.process
@pytest.mark.parametrize("released_after", [True, False])
def test_what_a_killed_process_created_is_swept(root: Path, path: Path, spawn: Spawn, released_after: bool) -> None:
    creator = spawn(CREATE + "sys.stdin.read()", root, path, 3)
    for _ in range(3):
        line_of(creator)
    assert sweep(root).segments == 0
    creator.send_signal(signal.SIGKILL)
    creator.wait()
    assert sweep(root).segments == 3
    assert not root.exists()
    if released_after:
        assert release_shared_memory(path, root) == 0
        assert not path.exists()


@pytest.mark.process
def test_a_forked_child_neither_ends_nor_inherits_its_parents_ownership(root: Path, path: Path) -> None:
    # The child releases the segment behind its parent's back, and exits: the parent lives, and so does its ownership.
    code = CREATE + "if os.fork() == 0:\n    os.unlink(root / shm.name)\n    sys.exit()\nos.wait()\n"
    code += "print(os.listdir(root)); print(create_shm(10, path, root).name)"
    out = subprocess.run(
        [sys.executable, "-c", code, str(root), str(path), "1"],
        cwd=REPO, check=True, capture_output=True, text=True,
    )  # fmt: skip
    _, owners, name = out.stdout.splitlines()
    assert owners.endswith(".owner']") and (root / name).exists()
    assert release_shared_memory(path, root) == 1


def test_bad_sizes_and_words_are_refused_and_leave_nothing(root: Path, path: Path) -> None:
    for nbytes in (0, -1):
        with pytest.raises(ValueError):
            create_shm(nbytes, path, root)
    name, shape = encode_shm_name_to_int64("0123456789a"), encode_shape_to_int64((1,))
    for words in ((shape, name), (name, 7), (name ^ 1, shape)):
        with pytest.raises(WordError):
            get_data_from_shm(*words, np.float32, "cpu", root)
    with pytest.raises(SegmentGone):
        get_data_from_shm(name, shape, np.float32, "cpu", root)
    assert not path.exists() and not root.exists()


def test_shape_times_item_size_must_be_the_created_bytes(root: Path, path: Path) -> None:
    shm = create_shm(48, path, root)
    word = encode_shm_name_to_int64(shm.name)
    assert decode_shm_name_from_int64(word) == shm.name
    assert get_data_from_shm(word, encode_shape_to_int64((3, 4)), np.float32, "cpu", root).shape == (3, 4)
    for shape, dtype in (((3, 4), np.float64), ((3, 5), np.float32), ((3, 3), np.float32)):
        with pytest.raises(SegmentMismatch):
            get_data_from_shm(word, encode_shape_to_int64(shape), dtype, "cpu", root)
    release_shared_memory(path, root)


def test_a_foreign_directory_is_refused(tmp_path: Path, path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(OwnerError):
        create_shm(10, path, tmp_path / "open")
    assert not path.exists()


@pytest.mark.process
def test_a_full_disk_is_an_error_and_leaves_nothing(small_disk: Path, path: Path) -> None:
    shm = create_shm(1 << 20, path, small_disk / "root")
    kept = path.read_text(), used_bytes(small_disk)
    with pytest.raises(SegmentFull, match="shared memory is full"):
        create_shm(1 << 20, path, small_disk / "root")
    assert (path.read_text(), used_bytes(small_disk)) == kept
    shm.buf[:] = bytes(1 << 20)  # every page was reserved: no SIGBUS
    assert release_shared_memory(path, small_disk / "root") == 1


def test_the_owner_file_of_a_long_running_process_does_not_grow(root: Path, path: Path, tmp_path: Path) -> None:
    create_shm(10, tmp_path / "kept", root)
    (file,) = root.glob("*.owner")
    sizes = []
    for i in range(600):
        shm = create_shm(10, path, root)
        if i % 2:
            os.unlink(root / shm.name)  # as another process releases it
            path.unlink()
        else:
            release_shared_memory(path, root)
        sizes.append(file.stat().st_size)
    assert max(sizes) == max(sizes[:200])
    release_shared_memory(tmp_path / "kept", root)


def test_releasing_a_servers_path_file_leaves_its_pool_usable(root: Path) -> None:
    owner = Owner.claim(root)
    pool = Pool(owner, 1 << 20)
    pool.lease("request", [10])
    (file,) = root.glob("*.paths")
    assert release_shared_memory(file, root) == 1
    pool.retire("request")
    assert pool.stats().total_bytes == 0
    assert len(pool.lease("request", [10])) == 1
    owner.close()
