"""Doubles for what lies beyond the process border: workers and an engine that a test plays by hand."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from configs.checkpoint import Checkpoint
from configs.serve import EngineConfig, MediaConfig, ModelConfig, ServeConfig
from model.engine.messages import (
    EngineReady,
    EngineStats,
    Finished,
    StepDone,
    Token,
    TokenEvent,
)
from server.children.engine_client import EngineClient
from server.children.liveness import STILL_PULSES
from server.children.supervisor import SupervisedChild
from server.children.workers import Worker, WorkerPool
from server.metrics import PREFIX, Metrics
from server.requests.answer import Delta
from server.requests.model_card import ModelCard, RequestLimits
from server.requests.request import CacheSalts
from server.requests.sampling import Defaults
from server.requests.segments import Segments
from server.requests.service import RequestService
from server.usage import ProcessUsage
from shm import ChannelClosed, Owner, Pool, PoolStats
from tokenization.chat.parts import Chat, Media, Text, Turn
from tokenization.messages import MediaItem, Prepared, WorkerReady
from tokenization.text.bpe import BPETokenizer

STATS = EngineStats(
    running=1, waiting=0, kv_blocks_used=1, kv_blocks_total=10, preemptions=0, embedding_bytes=0
)  # fmt: skip


class ChannelDouble:
    """Keeps what the server says; `closed` makes it fail as the channel of a dead child does."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.closed = False

    async def send(self, message: Any, *, large: bool = False) -> None:
        if self.closed:
            raise ChannelClosed("the peer is gone")
        self.said.append(message)

    def close(self) -> None:
        self.closed = True


class ChildDouble:
    """A process without a process."""

    def __init__(self) -> None:
        self.channel: Any = ChannelDouble()
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.pid = 1
        self.last_usage = ProcessUsage()

    @property
    def alive(self) -> bool:
        return not self.exited.done()


class Scene:
    """A service whose workers and engine are played by the test."""

    def __init__(
        self,
        tokenizer: BPETokenizer,
        root: Path,
        *,
        capacity: int = 1 << 20,
        workers: int = 1,
        seqs: int = 2,
        wait: float = 60.0,
    ) -> None:
        self.owner = Owner.claim(root)
        self.pool = Pool(self.owner, capacity)
        self.segments = Segments(self.pool)
        self.metrics = Metrics("tiny", "1.2.3")
        config = config_of(
            media=MediaConfig(max_items=4), engine=EngineConfig(max_seqs=seqs), workers=workers, wait_seconds=wait,
            pulse_seconds=20.0 / STILL_PULSES,
        )  # fmt: skip
        self.workers = WorkerPool(config, self.owner, self.metrics, 2000)
        self.engine = EngineClient(config, self.owner, self.metrics, 2000)
        self.service = RequestService(
            card(tokenizer),
            workers=self.workers,
            engine=self.engine,
            segments=self.segments,
            metrics=self.metrics,
            max_requests=4,
            salts=CacheSalts("key", keeps=False),
        )
        for index in range(workers):
            self.start_worker(index)
        self.start_engine()

    def start_worker(self, index: int = 0, *, ready: bool = True) -> None:
        start_in(self.workers.slots[index], ready=ready)

    def start_picture_worker(self) -> Worker:
        """None of the other doubles has one: pictures then take the workers of all media."""
        start_in(self.workers.picture)
        return self.workers.picture

    def start_text_worker(self) -> Worker:
        """Until then texts, too, go to the others."""
        start_in(self.workers.text)
        return self.workers.text

    def start_engine(self, *, ready: bool = True, max_model_len: int = 1000, max_media_tokens: int = 500) -> None:
        child: Any = ChildDouble()
        self.engine.on_started(child)
        if ready:
            self.engine.on_message(
                EngineReady(
                    device="cpu", dtype="float32", vocab_size=400, kv_blocks=10, block_size=100, memory=(),
                    max_model_len=max_model_len, max_media_tokens=max_media_tokens,
                )
            )  # fmt: skip

    def to_worker(self, index: int = 0) -> list[Any]:
        """What worker `index` has been told."""
        return told_in(self.workers.slots[index])

    def to_engine(self) -> list[Any]:
        """What the engine has been told."""
        return told_in(self.engine)

    def kill_worker(self, index: int = 0) -> None:
        kill_in(self.workers.slots[index])

    def kill_engine(self) -> None:
        kill_in(self.engine)

    def say(self, request_id: str, *ids: int, finish: Any = None) -> None:
        """The engine samples these tokens; the last one has the finish."""
        for i, token_id in enumerate(ids):
            last = finish if i == len(ids) - 1 else None
            event = TokenEvent(request_id=request_id, token=Token(id=token_id, logprob=-1.0), finish=last)
            self.engine.on_message(StepDone(tokens=(event,), stats=STATS, seconds={}))
        if finish:
            self.finished(request_id, "done")

    def finished(self, request_id: str, reason: Any, **fields: Any) -> None:
        self.engine.on_message(Finished(request_id=request_id, reason=reason, **fields))

    async def idle(self) -> None:
        """All that was said to children is sent, and nothing is left in the background."""
        for _ in range(3):  # no double of a channel makes its sender wait: one turn sends all that was said
            await asyncio.sleep(0)
        await self.segments.idle()

    async def stats(self) -> PoolStats:
        return await self.segments.stats()

    def close(self) -> None:
        self.segments.close()
        self.owner.close()


def start_in(worker: Worker, *, ready: bool = True) -> None:
    child: Any = ChildDouble()
    worker.on_started(child)
    if ready:
        worker.on_message(WorkerReady())


def kill_in(child: SupervisedChild) -> None:
    assert child.child is not None
    child.child.exited.set_result(-9)
    child.on_unavailable()
    child.on_reaped()


def told_in(child: SupervisedChild) -> list[Any]:
    """What it has been told."""
    assert child.child is not None
    channel: Any = child.child.channel
    said: list[Any] = channel.said
    return said


class EmitDouble:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.prepared: Prepared | None = None
        self.deltas: list[Delta] = []

    async def __call__(self, prepared: Prepared, delta: Delta) -> None:
        self.prepared = prepared
        self.deltas.append(delta)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


def config_of(**fields: Any) -> ServeConfig:
    return ServeConfig(model=ModelConfig(path=Path("/models/tiny"), served_name="tiny"), **fields)


def card(tokenizer: BPETokenizer) -> ModelCard:
    """A model whose answers end with id 1000."""
    return ModelCard(
        name="tiny", root="/models/tiny", family="tiny", created=0, tokenizer=tokenizer,
        defaults=Defaults(temperature=0.0, top_p=1.0, top_k=0, eos_ids=(1000,)),
        modalities=frozenset({"image"}), max_model_len=2000, max_n=8,
        limits=RequestLimits(tokens=1 << 21, nbytes=1 << 29, text=32, spelled=128),
    )  # fmt: skip


def tokenizer_of(path: Path) -> BPETokenizer:
    """The tokenizer of a checkpoint on disk."""
    return BPETokenizer.from_checkpoint(Checkpoint(path))


def chat_of(*kinds: str) -> Chat:
    """One turn: a text for "text", a medium for every other word."""
    parts: Any = tuple(
        Text(text="Hi") if kind == "text" else Media(kind=kind, source="data:,", param=f"inputs[{i}]")  # type: ignore[arg-type]
        for i, kind in enumerate(kinds)
    )
    return Chat(turns=(Turn(role="user", parts=parts, plain=False),))


def prepared(request_id: str, n: int = 5, media: int = 0) -> Prepared:
    """A worker's answer with `n` ids."""
    items = tuple(MediaItem(kind="image", spans=((i, 2),), grid=(1, 2, 2)) for i in range(media))
    return Prepared(
        request_id=request_id, input_ids=np.arange(n, dtype=np.int64), media=items,
        positions=np.zeros((3, n), np.int32), position_delta=0, seconds={"prompt": {"render": 0.001}},
    )  # fmt: skip


def prepared_pictures(sizes: list[tuple[int, int]]) -> Prepared:
    """The same for a chat with pictures that were sent with these widths and heights, of two pads each."""
    media = tuple(MediaItem(kind="image", spans=((0, 2),), grid=(1, 1, 1), size=size) for size in sizes)
    return msgspec.structs.replace(prepared("chat-1"), media=media, seconds={})


def value_of(metrics: Metrics, line: str) -> float:
    """Of one line of /metrics, by its name with all labels but the model's."""
    for text in metrics.render().decode().splitlines():
        name, _, number = text.rpartition(" ")
        if name.replace(',model_name="tiny"', "").replace('{model_name="tiny"}', "") == PREFIX + line:
            return float(number)
    raise AssertionError(f"no line {line}")


async def until(true: Callable[[], Any]) -> None:
    """Let the loop run until it is so."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.001)
