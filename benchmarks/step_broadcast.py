"""What it costs to tell another process of a step: by a socket, by shared memory.

Run as `python -m benchmarks.step_broadcast`. Each way sends the same bytes from one process to another, one message
after the other, each of which is answered by a byte, so that no way gets ahead of its reader. Printed are microseconds
of processor time of both processes for each message, and by the clock, the fastest of some rounds.
"""

import mmap
import os
import socket
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

from shm import Channel, channel_pair

SIZES = {"a decode step of 16": 4 << 10, "a chunk of 256 tokens": 20 << 10, "a chunk of 2,048 tokens": 140 << 10}
MESSAGES, ROUNDS = 200, 5
ROOM = 1 << 20  # bytes of the shared memory

Send = Callable[[bytes], None]
Receive = Callable[[], None]


class Ways:
    """What both processes inherit."""

    def __init__(self) -> None:
        self.message, self.wake, self.answer = channel_pair(), channel_pair(), channel_pair()
        self.memory = os.memfd_create("step")
        os.ftruncate(self.memory, ROOM)


def main() -> None:
    context, ways = get_context("fork"), Ways()
    ours, theirs = context.Pipe()
    other = context.Process(target=receiver, args=(ways, theirs))
    other.start()
    channel, memory = Channel[bytes](ways.message[0], bytes), mmap.mmap(ways.memory, ROOM)

    def by_memory(content: bytes) -> None:
        memory[: len(content)] = content
        ways.wake[0].send(len(content).to_bytes(4, "little"))

    senders: dict[str, Send] = {"socket": channel.send, "shared memory": by_memory}
    for what, nbytes in SIZES.items():
        content = os.urandom(nbytes)
        for way, send in senders.items():
            found = [one_round(way, send, content, ways.answer[0], ours) for _ in range(ROUNDS)]
            mine, others, clock = (min(column) / MESSAGES * 1e6 for column in zip(*found, strict=True))
            print(f"{what:<24} {way:<14} {mine:6.0f} + {others:4.0f} us of a processor, {clock:6.0f} us by the clock")
    ours.send("")
    other.join()


def one_round(
    way: str, send: Send, content: bytes, answer: socket.socket, control: Connection
) -> tuple[float, float, float]:
    """Seconds of this process, of the other one, and by the clock."""
    control.send(way)
    used, clock = time.process_time(), time.perf_counter()
    for _ in range(MESSAGES):
        send(content)
        answer.recv(1)
    used, clock = time.process_time() - used, time.perf_counter() - clock
    return used, float(control.recv()), clock


def receiver(ways: Ways, control: Connection) -> None:
    channel, memory = Channel[bytes](ways.message[1], bytes), mmap.mmap(ways.memory, ROOM)

    def by_memory() -> None:
        n = int.from_bytes(ways.wake[1].recv(4), "little")
        bytes(memory[:n])

    def by_socket() -> None:
        channel.recv(None)

    receivers: dict[str, Receive] = {"socket": by_socket, "shared memory": by_memory}
    while way := control.recv():
        used = time.process_time()
        for _ in range(MESSAGES):
            receivers[way]()
            ways.answer[1].send(b".")
        control.send(time.process_time() - used)


if __name__ == "__main__":
    main()
