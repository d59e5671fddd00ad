"""Runs one plan on the device: encode the media it reaches, one forward pass, one sampling."""

import logging
import time
from pathlib import Path

import torch

from model.engine import batch, media
from model.engine.kv_cache import CacheSize
from model.engine.messages import Token
from model.engine.plan import Outcome, Plan, RequestError
from model.engine.rules import Row, exhausted
from model.engine.sampler import sample, score
from model.engine.scheduler import Scheduler
from model.engine.sequence import Key
from model.net.multimodal import MultimodalLM

_log = logging.getLogger(__name__)
_NO_TOKEN = "the logits gave no token for this request"


class Runner:
    """The model with its cache. It changes a sequence's media; only the scheduler changes its progress."""

    def __init__(self, model: MultimodalLM, size: CacheSize, root: Path, max_rows: int) -> None:
        """max_rows: of logits at once; the memory profile has room for no more."""
        self._max_rows = max_rows
        self._model = model
        self._device = model.device
        self._size = size
        self._root = root
        self._kv = model.kv_cache(size.n_blocks, size.block_size)
        self._banned = torch.tensor(model.banned_ids, dtype=torch.int64, device=self._device)

    @torch.inference_mode()
    def run(self, plan: Plan, sequences: Scheduler) -> Outcome:
        """Run the plan. Failed media and logits without a token are named in the outcome; any other error is fatal."""
        started = time.perf_counter()
        read, failed = self._encode(plan, sequences)
        plan = plan.without(failed)
        encoded = time.perf_counter()
        seconds = {"encode": encoded - started} if read or failed else {}
        if not plan.chunks:
            return Outcome(tokens={}, read=read, failed=failed, seconds=seconds)
        logits, scores = self._forward(plan, sequences)
        forwarded = time.perf_counter()
        drawn = self._sample(plan, sequences, logits)
        stage = "prefill" if any(chunk.length > 1 for chunk in plan.chunks) else "decode"
        seconds |= {stage: forwarded - encoded, "sample": time.perf_counter() - forwarded}
        lost = {key[0]: self._lost(_row(sequences, key)) for key, token in drawn.items() if token is None}
        tokens = {key: token for key, token in drawn.items() if token is not None and key[0] not in lost}
        return Outcome(tokens=tokens, scores=scores, read=read, failed={**failed, **lost}, seconds=seconds)

    def _encode(self, plan: Plan, sequences: Scheduler) -> tuple[dict[str, tuple[str, ...]], dict[str, RequestError]]:
        """(segments that were read, errors), by request."""
        read: dict[str, tuple[str, ...]] = {}
        failed: dict[str, RequestError] = {}
        for chunk in plan.chunks:
            sequence = sequences[chunk.key]
            try:
                for item in (sequence.media[i] for i in chunk.encode):
                    array = media.read(item, self._root)
                    if item.segment is not None:
                        read[chunk.request_id] = (*read.get(chunk.request_id, ()), item.segment.name)
                    item.segment = None
                    media.encode(item, array, self._model, self._device)
            except RequestError as error:
                failed[chunk.request_id] = error
                _log.warning("request %s failed: %s", chunk.request_id, error, exc_info=error.__cause__)
        return read, failed

    def _forward(self, plan: Plan, sequences: Scheduler) -> tuple[torch.Tensor, dict[str, tuple[Token, ...]]]:
        """float32 logits [draws, vocab], and what tokens of prompts got, by request."""
        step = batch.build(plan, sequences, self._size.block_size, self._device)
        scores: dict[str, tuple[Token, ...]] = {}
        if any(chunk.scored[1] for chunk in plan.chunks):
            states = self._model.states(step, self._kv)
            n_drawn = sum(len(chunk.draws) for chunk in plan.chunks)
            scores = self._score(plan, sequences, states[n_drawn:])
            logits = self._model.logits(states[:n_drawn])
        else:
            logits = self._model.forward(step, self._kv)
        copies = [pair for chunk in plan.chunks for pair in chunk.copies]
        if copies:
            self._model.copy_blocks(self._kv, copies)
        return logits, scores

    def _score(self, plan: Plan, sequences: Scheduler, states: torch.Tensor) -> dict[str, tuple[Token, ...]]:
        """For each token that a chunk scores the one that follows it in the prompt. states: of those, in order."""
        found: dict[str, tuple[Token, ...]] = {}
        row = 0
        for chunk in plan.chunks:
            first, last = chunk.scored
            if first < last:
                sequence, rows = sequences[chunk.key], states[row : row + last - first]
                ids = torch.from_numpy(sequence.ids[first + 1 : last + 1]).to(self._device)
                width = sequence.sampling.top_logprobs
                found[chunk.request_id] = score(rows, ids, width, self._model.logits, self._max_rows)
                row += last - first
        return found

    def _lost(self, row: Row) -> RequestError:
        """Why nothing could be drawn: the request's own rules, or logits that are not finite."""
        if exhausted(row, self._model.banned_ids):
            return RequestError("the request allows no token", "nothing_allowed")
        return RequestError(_NO_TOKEN)

    def _sample(self, plan: Plan, sequences: Scheduler, logits: torch.Tensor) -> dict[Key, Token | None]:
        keys = [key for chunk in plan.chunks for key in chunk.draws]
        rows = [_row(sequences, key) for key in keys]
        return dict(zip(keys, sample(logits, rows, self._banned), strict=True))


def _row(sequences: Scheduler, key: Key) -> Row:
    sequence = sequences[key]
    return Row(sampling=sequence.sampling, position=sequence.n_tokens, history=sequence.history)
