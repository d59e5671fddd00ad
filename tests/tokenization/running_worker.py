"""A worker that runs in a thread, and the server's end of its channel."""

import fcntl
import termios
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.families.qwen2.processor import Qwen2Processor
from shm import Channel, ChannelClosed, ChannelError, Loading, Owner, Pool, Pulse, channel_pair
from tokenization import worker
from tokenization.chat.dialects import chat_from_native
from tokenization.media.source import Source
from tokenization.messages import (
    Cancel,
    FromWorker,
    Leases,
    Measured,
    Prepare,
    StartWorker,
    ToWorker,
    WorkerPulse,
    WorkerReady,
)  # fmt: skip
from tokenization.processor import Measure


class SlowPrompt(Qwen2Processor):
    """Qwen2-VL that stops before each decoding until it is let go on, and breaks when it is told to."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint, 28 * 28 * 1280)
        self.go_on = threading.Event()
        self.go_on.set()
        self.loading = threading.Event()
        self.broken = False

    def load(self, source: Source, measure: Measure, *rest: Any) -> np.ndarray:
        self.loading.set()
        assert self.go_on.wait(60)
        if self.broken:
            raise RuntimeError("secret /dev/shm/name 0x7f00deadbeef")
        return super().load(source, measure, *rest)


class Server:
    """The other end of a worker that runs in a thread."""

    def __init__(self, root: Path, processor: SlowPrompt) -> None:
        self.processor, self.root = processor, root
        self.owner = Owner.claim(root)
        self.pool = Pool(self.owner, 1 << 26)
        ours, theirs = channel_pair()
        self.channel: Channel[FromWorker | Loading] = Channel(ours, FromWorker | Loading)
        self.raw = ours
        self.ended: list[BaseException] = []
        start = StartWorker(checkpoint="", media=MediaConfig(), max_model_len=4096, shm_root=str(root))
        self.thread = threading.Thread(target=self._run, args=(Channel(theirs, ToWorker), start))
        self.thread.start()
        assert self.recv() == WorkerReady()

    def _run(self, channel: Channel[ToWorker], start: StartWorker) -> None:
        try:
            worker.run(channel, start, self.processor, Pulse(channel))
        except (ChannelClosed, ChannelError) as error:
            self.ended.append(error)
        finally:
            channel.close()

    def recv(self) -> FromWorker:
        """The next message that is no pulse."""
        while True:
            message = self.channel.recv(60)
            assert message is not None, "the worker says nothing"
            if not isinstance(message, WorkerPulse | Loading):
                return message

    def pulse(self, request_id: str | None) -> WorkerPulse:
        """The next one that says that the worker is at this job; what else comes until then is dropped."""
        while True:
            message = self.channel.recv(60)
            assert message is not None, "the worker says nothing"
            if isinstance(message, WorkerPulse) and message.request_id == request_id:
                return message

    def prepare(self, request_id: str, inputs: Any) -> None:
        self.channel.send(Prepare(request_id=request_id, chat=chat_from_native(inputs)))

    def lease(self, measured: FromWorker) -> tuple[str, ...]:
        assert isinstance(measured, Measured)
        names = self.pool.lease(measured.request_id, measured.nbytes)
        self.channel.send(Leases(request_id=measured.request_id, names=names))
        return names

    def cancel(self, request_id: str) -> None:
        """Returns when the worker has noted it: it reads what follows only then."""
        self.channel.send(Cancel(request_id=request_id))
        self.channel.send(Leases(request_id="nobody", names=()))
        deadline = time.monotonic() + 60
        while any(fcntl.ioctl(self.raw, termios.TIOCOUTQ, bytes(4))):  # bytes on their way
            assert time.monotonic() < deadline, "the worker does not read"
            time.sleep(0.001)

    def finish(self, request_id: str) -> None:
        self.pool.retire(request_id)
        self.pool.settle(request_id)

    def close(self) -> None:
        self.processor.go_on.set()
        self.channel.close()
        self.thread.join(60)
        assert not self.thread.is_alive() and len(self.ended) == 1
        assert self.pool.stats().leased_bytes == 0
        self.owner.close()
