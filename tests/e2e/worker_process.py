"""A tokenizer worker alone, as a server starts it, with the test on the server's side of its channel."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.serve import MediaConfig
from configs.worker import WorkerConfig
from server.children.processes import Ownership, _exec
from shm import Channel, Ending, Loading, Owner, Pool, channel_pair
from tokenization.chat.dialects import chat_from_native
from tokenization.messages import (
    FromWorker,
    Leases,
    Measured,
    Prepare,
    Prepared,
    PrepareFailed,
    StartWorker,
    WorkerGrown,
    WorkerPulse,
    WorkerReady,
)

PATIENCE = 60.0  # seconds without a word


class WorkerProcess:
    """One process, one job at a time."""

    def __init__(self, model: Path, root: Path, worker: WorkerConfig, media: MediaConfig) -> None:
        self._owner = Owner.claim(root)
        self._pool = Pool(self._owner, 1 << 30)
        ours, theirs = channel_pair()
        owned = Ownership(lock_fd=self._owner.fileno(), owner_name=self._owner.name, shm_root=root)
        self._process = _exec("worker", owned, theirs)
        theirs.close()
        self._channel: Channel[FromWorker | Loading | Ending] = Channel(ours, FromWorker | Loading | Ending)
        self._n = 0
        self.grown: list[int] = []  # what it said of its own memory
        start = StartWorker(checkpoint=str(model), media=media, max_model_len=32768, shm_root=str(root), worker=worker)
        self._channel.send(start)
        assert isinstance(self._next(), WorkerReady)

    def ask(self, *inputs: dict[str, Any]) -> Prepared | PrepareFailed:
        """One chat. What it wrote goes back to the pool."""
        self._n += 1
        name = f"chat-{self._n}"
        self._channel.send(Prepare(request_id=name, chat=chat_from_native(list(inputs))))
        try:
            while isinstance(answer := self._next(), Measured):
                leases = self._pool.lease(name, answer.nbytes) if answer.nbytes else ()
                self._channel.send(Leases(request_id=name, names=leases))
        finally:
            self._pool.retire(name)
            self._pool.settle(name)
        assert isinstance(answer, Prepared | PrepareFailed), answer
        return answer

    def memory(self, name: str) -> int:
        """Bytes of a line of the process's status: RssAnon, VmData, VmHWM."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))

    def forget_peak(self) -> None:
        """VmHWM begins anew (proc(5), clear_refs)."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def end(self) -> int:
        """The exit code."""
        self._channel.close()
        _, said = self._process.communicate(timeout=PATIENCE)
        print(said.decode())
        self._owner.close()
        return self._process.returncode

    def _next(self) -> FromWorker:
        """What it says, beside pulses."""
        while True:
            message = self._channel.recv(PATIENCE)
            assert message is not None, "it says nothing"
            if isinstance(message, WorkerGrown):
                self.grown.append(message.nbytes)
            elif not isinstance(message, WorkerPulse | Loading | Ending):
                return message


@contextmanager
def worker_process(
    model: Path, root: Path, worker: WorkerConfig | None = None, media: MediaConfig | None = None
) -> Iterator[WorkerProcess]:
    """It ends as a worker does that is told to."""
    process = WorkerProcess(model, root, worker or WorkerConfig(), media or MediaConfig())
    try:
        yield process
    finally:
        code = process.end()
    assert code == 0
