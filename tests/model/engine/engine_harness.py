"""The server's half around an engine under test: a pool of segments, prompts from chats, and who got which tokens."""

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from PIL import Image

from configs.checkpoint import Checkpoint
from configs.serve import EngineConfig, MediaConfig
from model.engine.engine import Engine
from model.engine.kv_cache_size import cache_size
from model.engine.messages import (
    Finished,
    FromEngine,
    Generate,
    MediaKept,
    MediaRead,
    SamplingParams,
    StepDone,
    TokenEvent,
)
from model.engine.ranks.link import RankLink
from model.engine.runner import reserved_for_graphs
from model.net.multimodal import MultimodalLM
from model.registry import family_of
from shm import Owner, Pool
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Chat, Media, Text, Turn
from tokenization.messages import Measured, Prepare, StartWorker
from tokenization.prepare import prepare
from tokenization.processor import Processor

Parts = Sequence[str | Image.Image | Media]
Alone = Callable[..., list[int]]  # of what is asked, and its sampling
GREEDY = SamplingParams(max_tokens=16, temperature=0.0, seed=0)


def picture(width: int, height: int, seed: int) -> Image.Image:
    """A smooth random picture."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def data_url(image: Image.Image) -> str:
    """The picture as a client would send it, without loss."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def clip(content: bytes, **options: Any) -> Media:
    """A video as a client would send it, with what may stand beside it."""
    source = "data:video/mp4;base64," + base64.b64encode(content).decode()
    return Media(kind="video", source=source, param="", options=MediaOptions(**options))


def chat_of(parts: Parts) -> Chat:
    """One user turn."""
    found: list[Text | Media] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            found.append(Text(text=part))
        elif isinstance(part, Media):
            found.append(part)
        else:
            found.append(Media(kind="image", source=data_url(part), param=f"messages[0].content[{i}]"))
    return Chat(turns=(Turn(role="user", parts=tuple(found), plain=False),))


class EngineHarness:
    """Prepares requests as a worker does, and books what an engine says as the server does."""

    def __init__(self, checkpoint: Path, owner: Owner) -> None:
        self.checkpoint, self.root = checkpoint, owner.root
        self.pool = Pool(owner, 64 << 20)
        self.events: dict[str, list[TokenEvent]] = {}
        self.finished: dict[str, Finished] = {}
        self.read: dict[str, list[str]] = {}
        self.kept: dict[bytes, int] = {}  # by the engine's own word
        self.lent: dict[str, Sequence[str]] = {}  # names of segments
        self._start = StartWorker(
            checkpoint=str(checkpoint), media=MediaConfig(), max_model_len=32768, shm_root=str(owner.root)
        )
        self.processor = processor_of(checkpoint)

    def between_entries(self) -> None:
        """Forget what was asked for."""
        for name in self.lent:
            self.drop(name)
        for book in (self.events, self.finished, self.read, self.kept, self.lent):
            book.clear()

    def drop(self, request_id: str) -> None:
        """As when the request ended: its names lead nowhere."""
        self.pool.retire(request_id)
        self.pool.settle(request_id)

    def prepare(self, request_id: str, parts: Parts, sampling: SamplingParams = GREEDY, salt: bytes = b"") -> Generate:
        """The chat as the engine gets it, its pixels in leased segments, but for those that it keeps.

        salt: of content keys; without one nothing is kept.
        """

        def ask(measured: Measured) -> Sequence[str]:
            kept = [key in self.kept for key in measured.keys] or [False] * len(measured.nbytes)
            sizes = [n for n, there in zip(measured.nbytes, kept, strict=True) if not there]
            self.lent[request_id] = self.pool.lease(request_id, sizes)
            names = iter(self.lent[request_id])
            return ["" if there else next(names) for there in kept]

        job = Prepare(request_id=request_id, chat=chat_of(parts), salt=salt)
        prepared = prepare(job, self._start, self.processor, ask, lambda: None)
        return Generate(prepared=prepared, sampling=sampling)

    def book(self, messages: Sequence[FromEngine]) -> None:
        """Take what an engine said. Nothing may follow a Finished, and nothing is read twice."""
        for message in messages:
            if isinstance(message, MediaRead):
                assert message.request_id not in self.finished
                self.read.setdefault(message.request_id, []).extend(message.names)
                self.pool.give_back(message.request_id, message.names)
            elif isinstance(message, MediaKept):
                for key in message.gone:
                    self.kept.pop(key, None)
                self.kept.update(message.kept)
            elif isinstance(message, StepDone):
                for event in message.tokens:
                    assert event.request_id not in self.finished
                    self.events.setdefault(event.request_id, []).append(event)
            elif isinstance(message, Finished):
                assert message.request_id not in self.finished
                self.finished[message.request_id] = message
                self.drop(message.request_id)

    def submit(self, engine: Engine, generate: Generate) -> None:
        """Hand a request over; a refusal is booked."""
        refusal = engine.submit(generate)
        if refusal is not None:
            self.book([refusal])

    def run(self, engine: Engine, max_steps: int = 3000) -> None:
        """Step until the engine is idle, checking its books after every step."""
        for _ in range(max_steps):
            if engine.idle:
                return
            self.book(engine.step())
            engine.check_integrity()
        raise AssertionError("the engine does not come to an end")

    def tokens(self, request_id: str) -> list[int]:
        """What was sampled for a request."""
        return [event.token.id for event in self.events.get(request_id, [])]

    def assert_clean(self, engine: Engine) -> None:
        """No request, block or lease is left anywhere, and no embeddings but those that stay by content."""
        assert engine.idle
        engine.free_ended()
        engine.check_integrity()
        assert all(isinstance(key, bytes) for key in engine._runner.embeddings.keys())
        assert engine._forms is None or not engine._forms.n_running
        assert engine.stats.kv_blocks_used == 0 and engine.stats.embedding_bytes == 0
        stats = self.pool.stats()
        assert stats.leased_bytes == 0 and stats.path_files == 0


@cache
def processor_of(checkpoint: Path) -> Processor:
    """As a worker has one for all requests."""
    found = Checkpoint(checkpoint)
    return family_of(found).processor(found, MediaConfig().max_pixels)


@contextmanager
def engine_harness_at(checkpoint: Path, root: Path) -> Iterator[EngineHarness]:
    """A host whose segments lie under `root`."""
    with closing(Owner.claim(root)) as owner:
        yield EngineHarness(checkpoint, owner)


def engine_at(
    model: MultimodalLM, root: Path, *, max_model_len: int = 1024, kv_tokens: int = 4096, block_size: int = 16,
    tokens: int = 64, encoder_tokens: int | None = None, seqs: int = 8, embedding_bytes: int = 1 << 20,
    graphs: bool = False, keeps: bool = True, prefix_cache: Literal["on", "off"] = "on",
    checkpoint: Path | None = None, link: RankLink | None = None,
    encoder_parallel: Literal["data", "replicated"] = "data", form_step_ms: int = 60_000, forms_bytes: int = 1 << 30,
) -> Engine:  # fmt: skip
    """An engine over `model` with a cache of `kv_tokens` tokens.

    No mask is late by itself: a step waits for them as long as it takes.
    """
    config = EngineConfig(
        max_seqs=seqs, max_batched_tokens=tokens, block_size=block_size, embedding_bytes=embedding_bytes,
        graphs=graphs, max_encoder_tokens=encoder_tokens, encoder_cache="on" if keeps else "off",
        prefix_cache=prefix_cache, encoder_parallel=encoder_parallel, form_step_ms=form_step_ms,
        forms_bytes=forms_bytes,
        kv_cache_bytes=kv_tokens * model.kv.bytes_per_token(model.dtype.itemsize),
    )  # fmt: skip
    reserved = reserved_for_graphs(config, model.device)
    size = cache_size(model.kv, model.dtype.itemsize, config, max_model_len, reserved=reserved)
    return Engine(model=model, config=config, root=root, size=size, checkpoint=checkpoint, link=link)


def with_prepared(generate: Generate, **fields: Any) -> Generate:
    """The same request with other ids, media or positions."""
    return msgspec.structs.replace(generate, prepared=msgspec.structs.replace(generate.prepared, **fields))
