"""The engine without its process: requests in, steps, messages out."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from configs.serve import EngineConfig
from model.device import embedding_bytes
from model.engine.batch import BatchBuilder, BlockTables
from model.engine.kv_blocks import BlockAllocator, BlockError, CacheSize
from model.engine.media import Bounds, checked_sequence
from model.engine.messages import (
    EngineStats,
    Finished,
    FromEngine,
    Generate,
    MediaKept,
    MediaRead,
    PromptScored,
    StepDone,
)
from model.engine.plan import Outcome, Plan, Progress, RequestError, progress_of
from model.engine.ranks.link import RankLink
from model.engine.runner import Runner
from model.engine.sampling.rows import Row
from model.engine.scheduler import Scheduler
from model.engine.scheduling.step_budget import Limits, max_encoder_tokens, step_tokens
from model.net.multimodal import MultimodalLM
from model.staging.streams import open_streams

if TYPE_CHECKING:
    from model.engine.sampling.forms import Forms


class Engine:
    """Continuous batching over one model. One thread calls everything; others may read only `progress`."""

    def __init__(
        self, *, model: MultimodalLM, config: EngineConfig, root: Path, size: CacheSize,
        checkpoint: Path | None = None, link: RankLink | None = None,
    ) -> None:  # fmt: skip
        """`root` holds the segments. The cache is made here, of `size`. link: to other ranks, which compute with it.

        checkpoint: whose tokenizer the forms of answers are over; None: no answer is held to one.
        """
        self._config = config
        self.size = size
        streams = open_streams(model.device)
        limits = Limits(
            max_seqs=config.max_seqs,
            max_batched_tokens=step_tokens(config),
            embedding_bytes=config.embedding_bytes,
            keeps_embeddings=config.encoder_cache == "on",
            max_table_blocks=model.ops.max_table_blocks(self.size.n_blocks, grouped=model.kv.grouped),
            max_encoder_tokens=max_encoder_tokens(config),
            prefix_cache=config.prefix_cache == "on",
            device_embedding_bytes=embedding_bytes(config) if streams.behind else 0,
        )
        self._scheduler = Scheduler(BlockAllocator(self.size.usable, self.size.block_size), limits)
        self._runner = Runner(model, self.size, root, config, streams, link)
        self._batches = BatchBuilder(
            self._runner.packer, BlockTables(self._scheduler.max_running, -(-size.max_model_len // size.block_size)),
            size.block_size, model.vocab_size, self._runner.padding_for,
        )  # fmt: skip
        self._banned = model.banned_ids
        self._bounds = Bounds(
            vocab_size=model.vocab_size,
            media_width=model.media_width,
            itemsize=model.dtype.itemsize,
            max_model_len=self.size.max_model_len,
            placeholder_ids=model.placeholder_ids,
            encoders=model.encoders,
            variant=model.rope.variant,
        )
        self._checkpoint = checkpoint
        self._forms: Forms | None = None  # from the first of them on
        self.progress: Progress | None = None

    @property
    def idle(self) -> bool:
        return len(self._scheduler) == 0

    @property
    def max_media_tokens(self) -> int:
        """Tokens whose embeddings fill the whole budget: a request with more is refused."""
        return self._config.embedding_bytes // (self._bounds.media_width * self._bounds.itemsize)

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
            embedding_bytes=scheduler.embeddings.reserved,
            mm_cache_queries=scheduler.embeddings.queries,
            mm_cache_hits=scheduler.embeddings.hits,
            prefix_queries=scheduler.prefixes.queries,
            prefix_hits=scheduler.prefixes.hits,
        )

    def submit(self, generate: Generate) -> Finished | None:
        """Queue a request, or return the Finished of one that cannot be served."""
        try:
            sequence = checked_sequence(generate, self._bounds)
            if generate.grammar is not None:
                ends = generate.sampling.stop_token_ids
                sequence.history.hold(self._opened_forms().hold(generate.grammar, ends, generate.client, generate.salt))
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
        if self.idle:
            return []
        if self._forms is not None:
            self._forms.receive()
        plan = self._scheduler.plan()
        if not plan.chunks:
            if self._forms is not None and self._scheduler.waits_for_masks:
                self._forms.wait()
            elif not plan.lacking:
                raise BlockError("requests are waiting and none of them can run")
            return self._of_media(plan, self._let_go(plan))
        if self._forms is not None:
            self._forms.dispatch()
        started = time.monotonic()
        self.progress = progress = progress_of(plan, started)
        sequences = [self._scheduler[chunk.key] for chunk in plan.chunks]
        begun = {one.request_id: one.n_cached for one in sequences if not one.n_charged}
        outcome = self._runner.run(plan, self._batches.build(plan, self._scheduler))
        errors = self._errors(outcome) if outcome.failed or outcome.lost else {}
        events = self._scheduler.commit(plan, outcome)
        if self._forms is not None:  # the next masks are made while this step is told
            self._forms.dispatch()
        self.progress = None
        step = StepDone(
            tokens=tuple(events), stats=self.stats, seconds=dict(outcome.seconds), n_tokens=progress.tokens,
            started=started, begun=begun, encoded=tuple(dict.fromkeys([item.key[0] for item in plan.encodes])),
        )  # fmt: skip
        return self._messages(plan, outcome, errors, step)

    def capture_graphs(self) -> None:
        """Capture graphs of decode steps, where the device has graphs and they are wanted: once, after a first step."""
        self._runner.capture_graphs(self._config)

    def free_ended(self) -> None:
        """Free the embeddings of ended requests. The next step would do it, but an idle engine takes no step."""
        if self.idle:
            self._let_go(self._scheduler.plan())

    def _let_go(self, plan: Plan) -> Outcome:
        """All that there is to do of a plan without chunks."""
        outcome = Outcome(tokens={}, dropped=self._runner.let_go(plan))
        self._scheduler.embeddings.commit(outcome)
        return outcome

    def check_integrity(self) -> None:
        """Raise BlockError unless blocks, queues, budgets and embeddings add up."""
        self._scheduler.check_integrity()
        if self._runner.embeddings.keys() != self._scheduler.embeddings.keys():
            raise BlockError("the embeddings that there are are not those of the books")

    def _opened_forms(self) -> "Forms":
        """Raises RequestError."""
        if self._forms is None:
            from model.engine.sampling.forms import Forms  # what only answers in a form need

            if self._checkpoint is None:
                raise RequestError("this engine holds no answer to a form")
            seconds, nbytes = self._config.form_step_ms / 1000, self._config.forms_bytes // 2
            self._forms = Forms(self._checkpoint, self._bounds.vocab_size, seconds, nbytes)
        return self._forms

    def _errors(self, outcome: Outcome) -> dict[str, RequestError]:
        """Errors of requests that cannot go on: a medium failed, or the request's own rules leave no token."""
        errors: dict[str, RequestError] = {}
        for (request_id, _), error in outcome.failed.items():
            errors.setdefault(request_id, error)
        for key in outcome.lost:
            if key[0] in errors:  # of another answer to the same
                continue
            sequence = self._scheduler[key]
            row = Row(sequence.sampling, sequence.n_tokens, sequence.history)
            if row.exhausted(self._banned):
                errors[key[0]] = RequestError("the request allows no token", "nothing_allowed")
            elif (form := sequence.history.holding) is not None and (
                refusal := form.refusal((*self._banned, *sequence.history.forbidden), sequence.history.allowed)
            ):
                errors[key[0]] = refusal
            else:
                errors[key[0]] = RequestError("the logits gave no token for this request")
        return errors

    def _messages(
        self, plan: Plan, outcome: Outcome, errors: Mapping[str, RequestError], step: StepDone
    ) -> list[FromEngine]:
        messages = self._of_media(plan, outcome)
        messages += [_failed(name, error) for name, error in errors.items()]
        messages += [PromptScored(request_id=n, tokens=t) for n, t in outcome.scores.items() if n not in errors]
        messages.append(step)
        ended = dict.fromkeys([event.request_id for event in step.tokens if event.finish])  # in order, each once
        messages += [Finished(request_id=name, reason="done") for name in ended if name not in self._scheduler]
        return messages

    def _of_media(self, plan: Plan, outcome: Outcome) -> list[FromEngine]:
        """What is kept from now on, which segments will not be opened, and who came for what is gone."""
        news, names = self._scheduler.embeddings.news(), dict[str, list[str]]()
        for item in (*(item for item in plan.encodes if item.key in outcome.read), *news.unread):
            if item.segment is not None:
                names.setdefault(item.key[0], []).append(item.segment.name)
        kept = [MediaKept(gone=news.gone, kept=news.kept)] if news.gone or news.kept else []
        read = [MediaRead(request_id=name, names=tuple(segments)) for name, segments in names.items()]
        gone = RequestError("its media came for embeddings that are gone", "media_evicted")
        return [*kept, *read, *(_failed(name, gone) for name in plan.lacking)]


def _failed(request_id: str, error: RequestError) -> Finished:
    return Finished(request_id=request_id, reason="failed", message=error.message, code=error.code)
