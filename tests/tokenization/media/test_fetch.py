"""Bytes come from data: URLs and from regular files under a root, and from nowhere else."""

import base64
import contextlib
import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.media.fetch import FEW_SIGNS, MAX_PATH, SLICE, fetch

ONE_MESSAGE = "this path is not a file that the server may open"


def get(source: str, *roots: Path, max_bytes: int = 1000) -> bytes:
    return fetch(source, roots=roots, max_bytes=max_bytes)


def refused(source: str, *roots: Path, max_bytes: int = 1000) -> str:
    with pytest.raises(ChatError) as caught:
        get(source, *roots, max_bytes=max_bytes)
    assert caught.value.param is None
    return caught.value.message


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.bin").write_bytes(b"abc")
    (root / "sub" / "b ä.bin").write_bytes(b"bcd")
    (tmp_path / "secret.bin").write_bytes(b"secret")
    return root


@each_of(
    "source, expected",
    [
        ("data:image/png;base64,YWJj", b"abc"),
        ("DATA:;BASE64,YWI=", b"ab"),
        ("data:image/png;charset=x;base64,YWI%3D", b"ab"),
        ("data:;base64,YWI", b"ab"),
        ("data:image/png; base64,YWJj", b"abc"),  # blanks as https://fetch.spec.whatwg.org/#data-url-processor
        ("data: image/png ;  BASE64 ,YWJj", b"abc"),
        ("data:text/plain; charset=x,base64", b"base64"),
        ("data:;base64,YW\r\nJj\n", b"abc"),
        ("data:;base64, YW Jj", b"abc"),
        ("data:;base64,YW%0AJj", b"abc"),
        ("data:;base64,-_-_", b"\xfb\xff\xbf"),
        ("data:;base64,-_8", b"\xfb\xff"),
        ("data:,a%20b", b"a b"),
        ("data:text/plain,%ff%00", b"\xff\x00"),
    ],
)
def test_data_urls(source: str, expected: bytes) -> None:
    assert get(source) == expected


@each_of(
    "source",
    [
        "data:image/png;base64",
        "data:image/png;base64,",
        "data:,",
        "data:;base64,YWJjY",
        "data:;base64,YW=Jj",
        "data:;base64,YW*Jj",
        "data:;base64,\n",
        "data:;base64,\u00e9\u00e9\u00e9\u00e9",
        "data:" + "x" * 5000 + ",a",
    ],
)
def test_damaged_data_urls_are_refused(source: str) -> None:
    refused(source)


def test_the_size_cap_of_data_urls_is_exact() -> None:
    for size in (999, 1000):
        assert len(get("data:;base64," + base64.b64encode(bytes(size)).decode())) == size
        assert len(get("data:," + "%00" * size)) == size
    for size in (1001, 1002, 1003, 5000):
        assert "1000 bytes" in refused("data:;base64," + base64.b64encode(bytes(size)).decode())
        assert "1000 bytes" in refused("data:," + "%00" * size)


@pytest.mark.parametrize("url", ["http://x/a.png", "https://x/a.png", "HTTP://127.0.0.1/", "http://ok\\@127.0.0.1/"])
def test_http_is_not_enabled(url: str, root: Path) -> None:
    assert "--allowed-media-domain" in refused(url, root)


@pytest.mark.parametrize(
    "url", ["ftp://x/a", "gopher://x", "s3://b/c", "file:///../etc/passwd", "file://host/a", "file://"]
)
def test_other_urls_are_refused(url: str, root: Path) -> None:
    refused(url, root)


def test_the_size_cap_counts_no_line_breaks() -> None:
    for size in (999, 1000):
        assert get("data:;base64," + base64.encodebytes(bytes(size)).decode()) == bytes(size)
        assert get("data:;base64," + base64.urlsafe_b64encode(b"\xff" * size).decode().rstrip("=")) == b"\xff" * size
    assert "1000 bytes" in refused("data:;base64," + base64.encodebytes(bytes(1001)).decode())


def test_paths_are_off_without_roots(root: Path) -> None:
    said = refused(str(root / "a.bin"))
    assert "not enabled" in said and "--allow-media-root" in said and "base64" not in said


def test_a_file_that_is_not_there_names_the_flag(root: Path) -> None:
    assert "--allow-media-root" in refused("absent.png", root)


@pytest.mark.parametrize("encode", [base64.b64encode, base64.encodebytes, base64.urlsafe_b64encode])
@pytest.mark.parametrize("roots", [0, 1])
def test_base64_without_its_beginning_is_told_the_form(
    encode: Callable[[bytes], bytes], roots: int, root: Path
) -> None:
    """A JPEG's begins with a slash, as a path does."""
    for picture in (b"\xff\xd8\xff" + bytes(60), bytes(range(256)) * 4000):
        said = refused(encode(picture).decode(), *[root] * roots)
        assert "base64 is sent as data:TYPE;base64,DATA" in said


def test_paths_under_a_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get(str(root / "a.bin"), root) == b"abc"
    assert get(f"file://{root}/sub/b%20%C3%A4.bin", root) == b"bcd"
    assert get(f"file://localhost{root}/a.bin", root) == b"abc"
    assert get("sub/b ä.bin", root) == b"bcd"  # relative to the root
    assert get("./sub//b ä.bin", root.parent / "absent", root) == b"bcd"
    monkeypatch.chdir(root.parent)
    assert get("root/a.bin", root) == b"abc"  # relative to the working directory


def test_a_root_that_is_a_link_works_by_both_names(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    assert get(str(link / "a.bin"), link) == b"abc"
    assert get(str(root / "a.bin"), link) == b"abc"


def test_the_size_cap_of_files_is_exact(root: Path) -> None:
    assert get("a.bin", root, max_bytes=3) == b"abc"
    assert "2 bytes" in refused("a.bin", root, max_bytes=2)


def test_a_sparse_giant_is_refused_unread(root: Path) -> None:
    with open(root / "giant", "wb") as file:
        file.truncate(1 << 40)
    start = time.process_time()
    assert "1000 bytes" in refused("giant", root)
    assert time.process_time() - start < 1


def test_an_empty_file_is_refused(root: Path) -> None:
    (root / "empty").touch()
    assert "empty" in refused("empty", root)


def test_all_that_is_no_regular_file_under_a_root_looks_alike(root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "out").symlink_to(root.parent / "secret.bin")
    (root / "nowhere").symlink_to("/absent/absent")
    (root / "inside").symlink_to(root / "a.bin")
    (root / "up").symlink_to(root.parent)
    os.mkdir(root / "closed", 0)
    attacks = [
        "fifo", "out", "nowhere", "inside", "up/secret.bin", "sub", "", ".", "closed/x", "absent", "a.bin/", "a.bin/x",
        "../secret.bin", "sub/../../secret.bin", "sub/../a.bin", str(root), f"{root}/", str(root.parent / "secret.bin"),
        str(root.parent / "absent.bin"), f"{root}-x/a.bin", f"{root}/../secret.bin", "/etc/passwd", "/dev/zero",
        "/proc/self/environ", "/proc/self/root/etc/passwd", "a.bin\0.png", "x" * 5000, "a/" * 3000, "~/x",
        f"file://{root}/%2e%2e/secret.bin", f"file://{root}/..%2fsecret.bin", f"file://{root}/a.bin%00.png",
    ]  # fmt: skip
    start = time.process_time()
    messages = {attack: refused(attack, root) for attack in attacks if attack != "a.bin/"}
    assert time.process_time() - start < 2
    wrong = {attack: said for attack, said in messages.items() if not said.startswith(ONE_MESSAGE)}
    assert not wrong
    assert not [said for said in messages.values() if str(root.parent) in said]
    # What is said besides depends on the text alone.
    assert len({said.partition("; base64 is sent")[0] for said in messages.values()}) == 1
    name = "x" * 100
    absent = refused(str(root.parent / name), root)
    (root.parent / name).touch()
    assert refused(str(root.parent / name), root) == absent


def test_a_root_over_devices_still_gives_regular_files_only() -> None:
    assert refused("/dev/zero", Path("/dev")).startswith(ONE_MESSAGE)
    assert refused("/dev/null", Path("/dev")).startswith(ONE_MESSAGE)


def test_a_file_that_reports_no_size_is_capped_too() -> None:
    assert "10 bytes" in refused("/proc/meminfo", Path("/proc"), max_bytes=10)
    assert get("/proc/meminfo", Path("/proc"), max_bytes=100_000).startswith(b"MemTotal")


def test_no_descriptor_is_left_open(root: Path) -> None:
    os.mkfifo(root / "fifo")
    before = sorted(os.listdir("/proc/self/fd"))
    get("sub/b ä.bin", root)
    for attack in ("fifo", "sub", "sub/absent", "absent/x"):
        refused(attack, root)
    refused("a.bin", root, max_bytes=1)
    assert sorted(os.listdir("/proc/self/fd")) == before


def peak_bytes(source: str, *roots: Path, max_bytes: int) -> int:
    """The most memory that fetching it took, the source itself aside."""
    tracemalloc.start()
    try:
        with contextlib.suppress(ChatError):
            get(source, *roots, max_bytes=max_bytes)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["data:image/png,", "data:image/png;base64,"])
def test_percent_encoding_costs_a_few_times_its_size(kind: str) -> None:
    """It was 48 times: urllib cuts the whole into pieces."""
    source = kind + "%41" * (1 << 18)
    assert peak_bytes(source, max_bytes=1 << 18) < 8 * len(source)


@pytest.mark.parametrize("path", ["ab/" * 100_000, "file:///" + "%61/" * 100_000])
def test_a_path_of_a_megabyte_is_not_cut_into_names(root: Path, path: str) -> None:
    assert refused(path, root).startswith(ONE_MESSAGE)
    assert peak_bytes(path, root, max_bytes=1000) < 8 * len(path)


def test_the_longest_path_that_the_kernel_opens_is_tried(root: Path) -> None:
    there = f"{root}/a.bin"
    padded = f"{root}{'/' * (MAX_PATH - len(there))}/a.bin"
    assert len(padded) == MAX_PATH and get(padded, root) == get("a.bin", root)
    assert refused(padded.replace("/a.bin", "//a.bin"), root).startswith(ONE_MESSAGE)


@each_of("shift", range(4))
def test_percent_signs_at_the_edge_of_a_slice_are_read_as_anywhere(shift: int) -> None:
    text = "x" * (SLICE - shift) + "%41%%42%4%zz%é%43" + "y" * SLICE + "%"
    assert get(f"data:text/plain,{text}", max_bytes=1 << 20) == unquote_to_bytes(text)


def test_data_that_is_percent_signs_for_the_most_part_is_not_decoded() -> None:
    assert "send it in base64" in refused("data:image/png," + "%41" * (FEW_SIGNS + 1), max_bytes=1 << 20)
    honest = base64.b64encode(bytes(range(256)) * 40_000).decode()
    quoted = honest.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    assert quoted.count("%") > FEW_SIGNS
    assert get(f"data:image/png;base64,{quoted}", max_bytes=16 << 20) == base64.b64decode(honest)
