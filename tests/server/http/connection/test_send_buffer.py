"""What a client has not taken is counted to the byte, whatever the kernel takes of it."""

import asyncio
import random
from typing import Any

from server.http.connection.send_buffer import PIECE, Clock, SendBuffer, Unread
from tests.server.tables import each_of


class Kernel(asyncio.Transport):
    """A transport that takes as many bytes as the test lets it, and keeps the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Any = None
        self.taken = bytearray()
        self.kept = bytearray()
        self.room = 0
        self.ended = ""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 1, "it must tell of the first byte that it keeps"

    def write(self, data: Any) -> None:
        assert not self.kept, "nothing is written to one that is full"
        self.kept += data
        self._move()
        if self.kept:
            self.protocol.pause_writing()

    def take(self, nbytes: int) -> None:
        """The client reads."""
        self.room += nbytes
        was = bool(self.kept)
        self._move()
        if was and not self.kept:
            self.protocol.resume_writing()

    def _move(self) -> None:
        n = min(self.room, len(self.kept))
        self.taken += self.kept[:n]
        del self.kept[:n]
        self.room -= n

    def get_write_buffer_size(self) -> int:
        return len(self.kept)

    def pause_reading(self) -> None:
        """It reads nothing."""

    def close(self) -> None:
        self.ended = "closed"  # once what it keeps is taken

    def abort(self) -> None:
        self.kept.clear()
        self.ended = "aborted"

    def is_closing(self) -> bool:
        return bool(self.ended)


class Guard:
    """Whose send buffer it is: notes why it is cut, and when it may go on."""

    def __init__(self, reasons: list[str]) -> None:
        self.box: SendBuffer
        self.reasons = reasons
        self.went_on = 0

    def cut(self, reason: str) -> None:
        self.reasons.append(reason)
        self.box.abort()

    def closes(self) -> None:
        """It closes."""

    def was_heard(self) -> None:
        self.went_on += 1


def send_buffer(unread: Unread, reasons: list[str] | None = None) -> tuple[SendBuffer, Kernel]:
    kernel, guard = Kernel(), Guard(reasons if reasons is not None else [])
    stand_in: Any = guard
    box = guard.box = kernel.protocol = SendBuffer(kernel, unread, stand_in)
    box.open()
    return box, kernel


def look(unread: Unread) -> None:
    for box, due in list(unread.due.items()):
        if due <= unread.clock.now:
            box.check()


@each_of("seed", range(20))
def test_every_byte_arrives_in_order_and_is_counted_until_then(seed: int) -> None:
    """Writes and reads of random sizes, in random order; in the end a close."""

    async def scenario() -> None:
        rng = random.Random(seed)
        unread = Unread(1 << 40, 60, Clock())
        boxes = [send_buffer(unread) for _ in range(3)]
        said = [b""] * 3
        for _ in range(100):
            i = rng.randrange(3)
            box, kernel = boxes[i]
            if rng.random() < 0.5:
                data = rng.randbytes(rng.choice((0, 1, 200, PIECE, PIECE + 1, 5 * PIECE)))
                box.write(data)
                said[i] += data
            else:
                kernel.take(rng.choice((1, 1000, 3 * PIECE)))
            held = [len(text) - len(kernel.taken) for text, (_, kernel) in zip(said, boxes, strict=True)]
            for box, _ in boxes:
                box.moved()
            assert unread.total == sum(held)
        for (box, kernel), text in zip(boxes, said, strict=True):
            box.close()
            box.write(b"after the end")
            kernel.take(len(text))
            await asyncio.sleep(0)
            assert kernel.ended == "closed" and kernel.taken == text
        assert unread.total == 0

    asyncio.run(scenario())


def test_whoever_took_nothing_for_longest_gives_way() -> None:
    reasons: list[str] = []
    unread = Unread(1000, 60, Clock())
    first, kernel = send_buffer(unread, reasons)
    second, other = send_buffer(unread, reasons)
    first.write(b"a" * 400)
    second.write(b"b" * 400)
    kernel.take(400)
    first.write(b"a" * 400)  # it read, so now the second has waited longest
    assert unread.total == 800 and not reasons
    first.write(b"a" * 201)
    assert reasons == ["unread_full"] and (kernel.ended, other.ended) == ("", "aborted")
    assert unread.total == 601
    first.write(b"a" * 400)
    assert kernel.ended == "aborted" and unread.total == 0
    first.write(b"a" * 400)
    assert unread.total == 0, "nothing more is kept for it"
    first.drop()
    assert unread.total == 0


def test_a_client_that_takes_nothing_in_time_is_given_up_and_a_slow_one_is_not() -> None:
    clock, reasons = Clock(), []  # type: ignore[var-annotated]
    unread = Unread(1 << 20, 60, clock)
    still, _ = send_buffer(unread, reasons)
    slow, kernel = send_buffer(unread)
    still.write(b"a" * 1000)
    slow.write(b"b" * 1000)
    for now in (59, 60, 119, 120):
        clock.now = now
        kernel.take(1)
        look(unread)
        assert reasons == ([] if now < 60 else ["unread"])
    assert unread.total == 996 and not kernel.is_closing()
    clock.now = 181
    look(unread)
    assert kernel.is_closing() and unread.total == 0
