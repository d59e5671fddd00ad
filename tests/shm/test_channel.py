"""The blocking end of a channel: all types that travel, threads, slow, torn and dead peers."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import shm.channel
from shm import Channel, ChannelClosed, ChannelError, channel_pair
from tests.shm.channels import Job, Message, Result, frame
from tests.shm.conftest import Spawn, line_of
from tests.tables import each_of

Ends = tuple[Channel[Message], Channel[Message]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = channel_pair()
    pair: Ends = Channel(one, Message), Channel(other, Message)
    yield pair
    for end in pair:
        end.close()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int64).reshape(2, 3) - 3,
        np.zeros((3, 0), np.int32),
        np.array(2.5),
        np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)),
        np.array([True, False]),
        np.arange(10, dtype=np.float16)[::2],
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_come_back_whole_and_writable(ends: Ends, array: np.ndarray) -> None:
    ends[0].send(Result(number=1, ids=array, spans=((1, 2), (3, 4))))
    got = ends[1].recv(10)
    assert isinstance(got, Result) and got.spans == ((1, 2), (3, 4))
    assert (got.ids.dtype, got.ids.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(got.ids, array)
    got.ids[...] = 1


def test_paths_and_text_of_any_kind_come_back(ends: Ends) -> None:
    job = Job(number=-5, text="你好\0 🙂", roots=(Path("/a b"), Path(os.fsdecode(b"/\xff"))))
    ends[0].send(job)
    assert ends[1].recv(10) == job


@pytest.mark.parametrize("value", [np.array([None]), np.zeros(2, "i4,f4"), np.zeros(2, "V3")])
def test_arrays_of_objects_and_records_are_refused(ends: Ends, value: np.ndarray) -> None:
    with pytest.raises(ChannelError):
        ends[0].send(Result(number=1, ids=value))
    ends[0].send(Job(number=2))
    assert ends[1].recv(10) == Job(number=2)


@each_of(
    "value",
    [
        {"type": "Nobody"},
        {"type": "Job"},
        {"type": "Job", "number": "five"},
        ["|O", [1], b"12345678"],
        ["<i8", [2], b"12345678"],
        ["nonsense", [1], b"1"],
        ["<i8", 1],
        "<i8",
    ],
)
def test_what_is_no_message_is_refused_and_the_next_one_is_read(value: object) -> None:
    raw, other = channel_pair()
    end: Channel[Message] = Channel(other, Message)
    if not isinstance(value, dict):
        value = {"type": "Result", "number": 1, "ids": value}
    raw.sendall(frame(msgspec.msgpack.encode(value)) + frame(b"\xc1") + frame(msgspec.msgpack.encode(Job(number=1))))
    for _ in range(2):
        with pytest.raises(ChannelError):
            end.recv(10)
    assert end.recv(10) == Job(number=1)
    raw.close()
    end.close()


def test_too_long_frames_are_neither_sent_nor_read(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    ends[0].send(Job(number=1, text="x" * 2000))
    monkeypatch.setattr(shm.channel, "MAX_FRAME", 1000)
    with pytest.raises(ChannelError):
        ends[0].send(Job(number=1, text="x" * 2000))
    with pytest.raises(ChannelError):
        ends[1].recv(10)


def test_large_messages_cross_in_parts_both_ways(ends: Ends) -> None:
    big = np.random.default_rng(0).integers(0, 256, 20 << 20, dtype=np.uint8)

    def echo() -> None:
        got = ends[1].recv()
        assert isinstance(got, Result)
        ends[1].send(got)

    thread = threading.Thread(target=echo)
    thread.start()
    ends[0].send(Result(number=1, ids=big))
    got = ends[0].recv(60)
    thread.join()
    assert isinstance(got, Result)
    np.testing.assert_array_equal(got.ids, big)


def test_a_timeout_keeps_the_part_that_has_arrived() -> None:
    raw, other = channel_pair()
    end: Channel[Message] = Channel(other, Message)
    data = frame(msgspec.msgpack.encode(Job(number=7, text="slow")))
    assert end.recv(0.0) is None
    for i, byte in enumerate(data):
        raw.sendall(bytes([byte]))
        got = end.recv(0.001)
        assert got == (Job(number=7, text="slow") if i == len(data) - 1 else None)
    raw.close()
    end.close()


def test_threads_may_send_at_once(ends: Ends) -> None:
    def work(tag: int) -> None:
        for i in range(100):
            ends[0].send(Result(number=1000 * tag + i, ids=np.full(5000, 1000 * tag + i)))

    threads = [threading.Thread(target=work, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    seen: list[int] = []
    for _ in range(400):
        got = ends[1].recv(30)
        assert isinstance(got, Result) and (got.ids == got.number).all()
        seen.append(got.number)
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 400
    assert all([n for n in seen if n // 1000 == tag] == [1000 * tag + i for i in range(100)] for tag in range(4))


@each_of("part", [b"", b"\x10\0", b"\x10\0\0\0abc"])
def test_the_end_of_file_is_the_end_also_in_mid_frame(part: bytes) -> None:
    raw, other = channel_pair()
    end: Channel[Message] = Channel(other, Message)
    raw.sendall(part)
    raw.close()
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            end.recv(10)
    with pytest.raises(ChannelClosed):
        end.send(Job(number=1))
    end.close()


def test_closing_wakes_a_reader(ends: Ends) -> None:
    woken: list[BaseException] = []

    def read() -> None:
        try:
            ends[0].recv()
        except ChannelClosed as error:
            woken.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    time.sleep(0.1)
    ends[0].close()
    thread.join(60)
    assert len(woken) == 1


def test_an_end_may_be_given_as_a_descriptor_and_is_not_inherited() -> None:
    one, other = channel_pair()
    os.set_inheritable(other.fileno(), True)
    end: Channel[Message] = Channel(other.detach(), Message)
    Channel[Message](one, Message).send(Job(number=1))
    assert end.recv(10) == Job(number=1)
    one.close()
    end.close()


CHILD = """
import os, sys
from shm import Channel
fd = int(sys.argv[1])
channel = Channel(fd, dict)
assert not os.get_inheritable(fd)
print("up", flush=True)
while True:
    channel.send(channel.recv())
"""


@pytest.mark.process
def test_a_killed_child_is_seen_at_once(spawn: Spawn) -> None:
    one, other = channel_pair()
    child = spawn(CHILD, other.fileno(), pass_fds=(other.fileno(),))
    other.close()
    end: Channel[dict[str, int]] = Channel(one, dict)
    assert line_of(child) == "up"
    end.send({"a": 1})
    assert end.recv(10) == {"a": 1}
    child.send_signal(signal.SIGKILL)
    with pytest.raises(ChannelClosed):
        end.recv(60)  # no message tells it
    end.close()


def test_channel_pair_ends_do_not_survive_exec() -> None:
    for end in channel_pair():
        assert isinstance(end, socket.socket) and not end.get_inheritable()
        end.close()
