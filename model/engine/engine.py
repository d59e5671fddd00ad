"""The engine without its process: requests in, steps, messages out. Knows no channel and no clock but its own."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.serve import EngineConfig
from model.engine import kv_cache
from model.engine.kv_blocks import BlockAllocator, BlockError
from model.engine.media import Bounds, RequestError, take_words
from model.engine.messages import (
    EngineStats,
    Finished,
    FromEngine,
    Generate,
    MediaRead,
    StepDone,
    Token,
    TokenEvent,
)
from model.engine.plan import Plan
from model.engine.profile import Profile
from model.engine.runner import Encoded, Runner
from model.engine.scheduler import Limits, Scheduler
from model.engine.sequence import Key
from model.net.multimodal import MultimodalLM
from tokenization.messages import MediaItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The step that runs now, as another thread may read it."""

    started: float  # time.monotonic()
    tokens: int
    patches: int


class Engine:
    """Continuous batching over one model. One thread calls everything; only `progress` may be read from others."""

    def __init__(self, *, model: MultimodalLM, config: EngineConfig, root: Path, max_model_len: int) -> None:
        """`root` holds the segments. Raises CacheTooSmall when `config.kv_cache_bytes` holds no block."""
        self._config = config
        itemsize = model.dtype.itemsize
        self.size = kv_cache.cache_size(model.kv, itemsize, config, max_model_len)
        limits = Limits(
            max_seqs=config.max_seqs,
            max_batched_tokens=config.max_batched_tokens,
            embedding_bytes=config.embedding_bytes,
        )
        self._scheduler = Scheduler(BlockAllocator(self.size.n_blocks, self.size.block_size), limits)
        self._runner = Runner(model, self.size, root)
        self._bounds = Bounds(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            itemsize=itemsize,
            max_model_len=self.size.max_model_len,
            pad_ids=model.pad_ids,
            media_shape=model.media_shape,
            media_dtype=model.media_dtype,
        )
        self.progress: Progress | None = None

    @property
    def idle(self) -> bool:
        """No request is inside."""
        return len(self._scheduler) == 0

    @property
    def max_media_tokens(self) -> int:
        """Tokens whose embeddings fill the whole budget: a request with more of them never runs."""
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
            embedding_bytes=scheduler.embedding_bytes,
        )

    def submit(self, generate: Generate) -> Finished | None:
        """Queue a request. A request that cannot be served is answered at once, alone."""
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
        """Forget a request, or one answer of it, in whatever state it is; one that is unknown is answered alike.

        None while other answers go on.
        """
        self._scheduler.remove(request_id, index)
        return None if request_id in self._scheduler else Finished(request_id=request_id, reason="abort")

    def step(self) -> list[FromEngine]:
        """One step: what was read, who failed, the tokens, who is done. Nothing when idle.

        An error that belongs to no single request (the forward pass, the books) is raised and ends the engine.
        """
        plan = self._scheduler.plan()
        if not plan.chunks:
            if not self.idle:
                raise BlockError("requests are waiting and none of them can run")
            return []
        self.progress = Progress(started=time.monotonic(), tokens=plan.n_tokens, patches=self._patches(plan))
        encoded = self._runner.encode(plan, self._scheduler)
        messages = self._report_media(encoded)
        plan = plan.without(encoded.failed)
        seconds = {"encode": encoded.seconds} if encoded.read or encoded.failed else {}
        events: list[TokenEvent] = []
        if plan.chunks:
            sampled = self._runner.run(plan, self._scheduler)
            stage = "prefill" if any(chunk.length > 1 for chunk in plan.chunks) else "decode"
            seconds |= {stage: sampled.forward_seconds, "sample": sampled.sample_seconds}
            events, failures = self._commit(plan, sampled.tokens)
            messages += failures
        self.progress = None
        messages.append(StepDone(tokens=tuple(events), stats=self.stats, seconds=seconds))
        ended = dict.fromkeys(event.request_id for event in events if event.finish)  # in order, each once
        messages += [Finished(request_id=name, reason="done") for name in ended if name not in self._scheduler]
        return messages

    def profile(self, largest: tuple[MediaItem, ...]) -> Profile:
        """What the largest items and a full step take on this device: runs them, so only before the first request."""
        return self._runner.profile(self._config, largest)

    def check_integrity(self) -> None:
        """Raise BlockError unless blocks, queues and budgets add up."""
        self._scheduler.check_integrity()

    def _commit(self, plan: Plan, sampled: Mapping[Key, Token | None]) -> tuple[list[TokenEvent], list[Finished]]:
        """Book the step: the tokens that came out, and the requests whose logits gave none."""
        broken = list(dict.fromkeys(name for (name, _), token in sampled.items() if token is None))
        for name in broken:
            self._scheduler.remove(name)
        tokens = {key: token for key, token in sampled.items() if token is not None and key[0] not in broken}
        finishes = self._scheduler.commit(plan.without(broken), {key: token.id for key, token in tokens.items()})
        events = [
            TokenEvent(request_id=name, index=index, token=token, finish=finishes[name, index])
            for (name, index), token in tokens.items()
        ]
        error = RequestError("the logits gave no token for this request")
        return events, [_failed(name, error) for name in broken]

    def _patches(self, plan: Plan) -> int:
        """Patches that the towers get in this step."""
        items = (self._scheduler[chunk.key].media[i].item for chunk in plan.chunks for i in chunk.encode)
        return sum(math.prod(item.grid) for item in items)

    def _report_media(self, encoded: Encoded) -> list[FromEngine]:
        messages: list[FromEngine] = [
            MediaRead(request_id=request_id, names=names) for request_id, names in encoded.read.items()
        ]
        for request_id, error in encoded.failed.items():
            self._scheduler.remove(request_id)
            messages.append(_failed(request_id, error))
        return messages


def _failed(request_id: str, error: RequestError) -> Finished:
    return Finished(request_id=request_id, reason="failed", message=error.message, code=error.code)
