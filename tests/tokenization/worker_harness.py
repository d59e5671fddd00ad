"""The server's side of one worker job: leases by a pool, and what was asked of it."""

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from configs.serve import MediaConfig
from shm import Owner, Pool
from tokenization.cancel import Cancelled
from tokenization.chat.dialects import chat_from_native
from tokenization.chat.errors import ChatError
from tokenization.messages import Measured, Prepare, Prepared, StartWorker
from tokenization.prepare import prepare
from tokenization.processor import Processor


def url(data: bytes) -> str:
    return "data:;base64," + base64.b64encode(data).decode()


class WorkerHarness:
    """The server's side of one job: leases by a pool, and what was asked of it."""

    def __init__(self, root: Path, processor: Processor) -> None:
        self.owner = Owner.claim(root)
        self.pool = Pool(self.owner, 1 << 26)
        self.root, self.processor = root, processor
        self.asked: list[Measured] = []
        self.salt = b""  # of content keys
        self.kept: set[bytes] = set()  # those that the engine has
        self.checks = 0
        self.leaves_at: int | None = None  # the check at which the client has left

    def start(self, max_model_len: int = 4096, **media: Any) -> StartWorker:
        return StartWorker(
            checkpoint="", media=MediaConfig(**media), max_model_len=max_model_len, shm_root=str(self.root)
        )

    def ask(self, measured: Measured) -> Sequence[str]:
        self.asked.append(measured)
        kept = [key in self.kept for key in measured.keys] or [False] * len(measured.nbytes)
        sizes = [n for n, there in zip(measured.nbytes, kept, strict=True) if not there]
        names = iter(self.pool.lease(measured.request_id, sizes))
        return ["" if there else next(names) for there in kept]

    def check(self) -> None:
        self.checks += 1
        if self.checks == self.leaves_at:
            raise Cancelled

    def run(self, inputs: Any, start: StartWorker | None = None, *, count_only: bool = False) -> Prepared:
        job = Prepare(request_id="r1", chat=chat_from_native(inputs), count_only=count_only, salt=self.salt)
        return prepare(job, start or self.start(), self.processor, self.ask, self.check)

    def refused(self, inputs: Any, start: StartWorker | None = None) -> ChatError:
        with pytest.raises(ChatError) as caught:
            self.run(inputs, start)
        assert not self.asked  # nothing was reserved, and so nothing was decoded
        return caught.value

    def end(self) -> None:
        """What was leased goes back to the pool."""
        self.pool.retire("r1")
        self.pool.settle("r1")


@contextmanager
def worker_harness_at(root: Path, processor: Processor) -> Iterator[WorkerHarness]:
    """A harness of which no lease is left in the end."""
    harness = WorkerHarness(root, processor)
    yield harness
    harness.end()
    assert harness.pool.stats().leased_bytes == 0
    harness.owner.close()
