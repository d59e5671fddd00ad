"""A log whose reader is slow, stops or leaves: who writes never waits, and what is dropped is counted."""

import errno
import logging
import os
import sys
import threading
import time

import pytest

from server.logs import stderr
from server.logs.stderr import QueuedStderr, queued_stderr


def read_all(fd: int, into: list[bytes]) -> threading.Thread:
    """A thread that reads until the other end is closed."""

    def read() -> None:
        while data := os.read(fd, 1 << 16):
            into.append(data)

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def filled(fd: int) -> None:
    """A pipe that takes nothing more."""
    os.set_blocking(fd, False)
    try:
        while True:
            os.write(fd, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(fd, True)


def test_everything_is_written_in_order_where_somebody_reads() -> None:
    reader, writer = os.pipe()
    got: list[bytes] = []
    thread = read_all(reader, got)
    queued = QueuedStderr(writer)
    for n in range(20_000):
        queued.write(f"line {n} é\n")
    assert queued.end(60) and queued.dropped == 0
    os.close(writer)
    thread.join()
    os.close(reader)
    assert b"".join(got).decode() == "".join(f"line {n} é\n" for n in range(20_000))


def test_a_reader_that_stops_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(stderr, "MOST_BYTES", 10_000)
    reader, writer = os.pipe()
    filled(writer)
    queued = QueuedStderr(writer)
    began = time.monotonic()
    for n in range(3000):
        queued.write(f"{n:04}: ninety-nine bytes and an end of line {'x' * 56}\n")
    assert time.monotonic() - began < 60 and 2890 <= queued.dropped < 3000
    assert not queued.end(0.05), "and so does the end"
    got: list[bytes] = []
    thread = read_all(reader, got)
    with caplog.at_level(logging.WARNING, "pixelferry"):
        deadline = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
    os.close(writer)
    thread.join()
    os.close(reader)
    kept = b"".join(got).lstrip(b".").splitlines()
    assert len(kept) == 3000 - queued.dropped and kept[0].startswith(b"0000: ")


def test_it_says_how_many_lines_were_dropped_when_it_flows_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stderr, "MOST_BYTES", 100)
    reader, writer = os.pipe()
    filled(writer)
    queued = QueuedStderr(writer)
    for _ in range(12):
        queued.write("x" * 19 + "\n")
    got: list[bytes] = []
    thread = read_all(reader, got)
    deadline = time.monotonic() + 60
    while not caplog.messages and time.monotonic() < deadline:
        time.sleep(0.01)
    assert caplog.messages == [f"{queued.dropped} lines of the log were dropped: its reader did not keep up"]
    assert queued.dropped == 7
    assert queued.end(60)
    os.close(writer)
    thread.join()
    os.close(reader)


def test_a_disk_that_was_full_tears_no_line_behind_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest of a cut line is lost, and the next one stands alone; the log says why lines are missing."""
    disk, room = bytearray(), [7]

    real = os.write

    def write(fd: int, data: memoryview) -> int:
        if fd != -1:
            return real(fd, data)
        taken = min(len(data), room[0])
        if data and not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= taken
        disk.extend(data[:taken])
        return taken

    monkeypatch.setattr(os, "write", write)
    queued = QueuedStderr(-1)
    for line, free in (("one\n", 0), ("two cut\n", 0), ("lost\n", 0), ("four\n", 100), ("five\n", 0)):
        room[0] += free
        queued.write(line)
        until_written(queued)
    assert disk == b"one\ntwo\nfour\nfive\n" and queued.dropped == 2
    assert caplog.messages == [
        "2 lines of the log were dropped: it could not be written (No space left on device, ENOSPC)"
    ]
    assert queued.end(60)


def until_written(queued: QueuedStderr) -> None:
    with queued._changed:
        assert queued._changed.wait_for(lambda: not queued._nbytes, 60)


def test_what_ends_no_line_is_followed_as_it_was_written() -> None:
    """As a bar of progress is, which is drawn again over itself."""
    reader, writer = os.pipe()
    queued = QueuedStderr(writer)
    for part in ("\r 10%", "\r 20%", "\r100%", "\n"):
        queued.write(part)
        assert os.read(reader, 100).decode() == part
    assert queued.end(60)
    os.close(writer)
    os.close(reader)


def test_a_reader_that_left_costs_lines_and_nothing_else() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    queued = QueuedStderr(writer)
    for _ in range(3):
        queued.write("to nobody\n")
    assert queued.end(60) and queued.dropped == 3
    os.close(writer)


def test_it_stands_in_the_place_of_stderr_and_gives_it_back(capfd: pytest.CaptureFixture[str]) -> None:
    own = sys.stderr
    with queued_stderr():
        print("said", file=sys.stderr)
        assert sys.stderr is not own
    assert sys.stderr is own and capfd.readouterr().err == "said\n"
