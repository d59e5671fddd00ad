"""The engine without its process: requests in, steps, messages out."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.serve import EngineConfig
from model.engine.kv_blocks import BlockAllocator, BlockError, CacheSize
from model.engine.media import Bounds, take_words
from model.engine.messages import (
    EngineStats,
    Finished,
    FromEngine,
    Generate,
    MediaRead,
    PromptScored,
    StepDone,
    TokenEvent,
)
from model.engine.plan import Outcome, Plan, RequestError
from model.engine.runner import Runner
from model.engine.scheduler import Limits, Scheduler
from model.engine.sequence import Finish, Key
from model.net.multimodal import MultimodalLM
from model.staging.streams import open_streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The running step, as other threads may read it."""

    started: float  # time.monotonic()
    tokens: int
    patches: int
    pairs: int  # of patches of one picture or temporal grid: attention is quadratic in it


class Engine:
    """Continuous batching over one model. One thread calls everything; others may read only `progress`."""

    def __init__(self, *, model: MultimodalLM, config: EngineConfig, root: Path, size: CacheSize) -> None:
        """`root` holds the segments. The cache is made here, of `size`."""
        self._config = config
        self.size = size
        limits = Limits(
            max_seqs=config.max_seqs,
            max_batched_tokens=config.max_batched_tokens,
            embedding_bytes=config.embedding_bytes,
            max_table_blocks=model.ops.max_table_blocks(self.size.n_blocks),
        )
        self._scheduler = Scheduler(BlockAllocator(self.size.usable, self.size.block_size), limits)
        self._runner = Runner(model, self.size, root, config, open_streams(model.device))
        self._bounds = Bounds(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            itemsize=model.dtype.itemsize,
            max_model_len=self.size.max_model_len,
            pad_ids=model.placeholder_ids,
            media_shape=model.media_shape,
            media_dtype=model.media_dtype,
        )
        self.progress: Progress | None = None

    @property
    def idle(self) -> bool:
        return len(self._scheduler) == 0

    @property
    def max_media_tokens(self) -> int:
        """Tokens whose embeddings fill the whole budget: a request with more is refused."""
        return self._config.embedding_bytes // (self._bounds.hidden_size * self._bounds.itemsize)

    @property
    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            running=scheduler.n_running,
            waiting=scheduler.n_waiting,
            kv_blocks_used=scheduler.allocator.n_used,
            kv_blocks_total=scheduler.allocator.n_blocks,
            preemptions=scheduler.preemptions,
            gave_way=scheduler.gave_way,
            embedding_bytes=scheduler.embedding_bytes,
        )

    def submit(self, generate: Generate) -> Finished | None:
        """Queue a request, or return the Finished of one that cannot be served."""
        try:
            sequence = take_words(generate, self._bounds)
        except RequestError as error:
            return _failed(generate.request_id, error)
        refusal = self._scheduler.refuse(sequence)
        if refusal is not None:
            return _failed(generate.request_id, RequestError(refusal))
        try:
            self._scheduler.add(sequence)
        except ValueError as error:
            return _failed(generate.request_id, RequestError(str(error)))
        return None

    def abort(self, request_id: str, index: int | None = None) -> Finished | None:
        """Forget a request, or one of its answers, in any state, known or not; None while other answers go on."""
        self._scheduler.remove(request_id, index)
        return None if request_id in self._scheduler else Finished(request_id=request_id, reason="abort")

    def step(self) -> list[FromEngine]:
        """Run one step; [] when idle. An error that belongs to no single request is raised and ends the engine."""
        plan = self._scheduler.plan()
        if not plan.chunks:
            if not self.idle:
                raise BlockError("requests are waiting and none of them can run")
            return []
        self.progress = Progress(started=time.monotonic(), tokens=plan.n_tokens, **self._seen(plan))
        outcome = self._runner.run(plan, self._scheduler)
        finishes = self._scheduler.commit(plan, outcome)
        self.progress = None
        return self._messages(plan.n_tokens, outcome, finishes)

    def capture_graphs(self) -> None:
        """Of decode steps, where the device has graphs and they are wanted: once, behind a first step."""
        self._runner.capture_graphs(self._config)

    def check_integrity(self) -> None:
        """Raise BlockError unless blocks, queues and budgets add up."""
        self._scheduler.check_integrity()

    def _seen(self, plan: Plan) -> dict[str, int]:
        """`patches` and `pairs` of what the step encodes; sounds are attended to in short chunks or are short."""
        items = [self._scheduler[chunk.key].media[i].item for chunk in plan.chunks for i in chunk.encode]
        pairs = sum(t * (h * w) ** 2 for t, h, w in (item.grid for item in items if item.kind != "audio"))
        return {"patches": sum(math.prod(item.grid) for item in items), "pairs": pairs}

    def _messages(self, n: int, outcome: Outcome, finishes: Mapping[Key, Finish | None]) -> list[FromEngine]:
        read = [MediaRead(request_id=name, names=segments) for name, segments in outcome.read.items()]
        failed = [_failed(name, error) for name, error in outcome.failed.items()]
        events = tuple(
            TokenEvent(request_id=key[0], index=key[1], token=token, finish=finishes[key])
            for key, token in outcome.tokens.items()
        )
        step = StepDone(tokens=events, stats=self.stats, seconds=dict(outcome.seconds), n_tokens=n)
        ended = dict.fromkeys(event.request_id for event in events if event.finish)  # in order, each once
        done = [Finished(request_id=name, reason="done") for name in ended if name not in self._scheduler]
        scored = [PromptScored(request_id=name, tokens=tokens) for name, tokens in outcome.scores.items()]
        return [*read, *failed, *scored, step, *done]


def _failed(request_id: str, error: RequestError) -> Finished:
    return Finished(request_id=request_id, reason="failed", message=error.message, code=error.code)
