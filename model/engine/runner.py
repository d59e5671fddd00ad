"""Runs one plan on the device: encode the media it reaches, one forward pass, one sampling.

The host waits for the device once, for the tokens; what an encoder does is awaited within its request.
"""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from configs.serve import EngineConfig
from model.engine import media
from model.engine.batch import Step
from model.engine.kv_cache import CacheSize, device_embeddings
from model.engine.messages import Token
from model.engine.plan import Outcome, Plan, RequestError
from model.engine.rules import Row, exhausted
from model.engine.sampler import Draws, sample, score, scored_tokens, tokens_of
from model.engine.scheduler import Scheduler
from model.engine.sequence import Key, SequenceMedia
from model.engine.sequence import Sequence as Answer
from model.forward_batch import KVCache
from model.net.multimodal import MultimodalLM
from model.staging.graphs import DecodeGraphs, Place, graph_module, ladder, reserved_blocks
from model.staging.layout import step_fields
from model.staging.packing import Packer
from model.staging.results import Results
from model.staging.streams import Streams, open_streams
from model.staging.tables import Tables
from model.staging.uploads import Uploads

_log = logging.getLogger(__name__)
_NO_TOKEN = "the logits gave no token for this request"
_RULES_BYTES = 16 << 10  # of the packed copy, for each row: a thousand ids that rules look at


class Runner:
    """The model with its cache. It changes a sequence's media; only the scheduler changes its progress."""

    def __init__(
        self, model: MultimodalLM, size: CacheSize, root: Path, config: EngineConfig, streams: Streams
    ) -> None:
        self._max_rows = min(config.max_seqs, config.max_batched_tokens)  # of logits at once: the profile has no more
        self._model = model
        self._size = size
        self._root = root
        self._streams = streams
        self._kv = model.kv_cache(size.n_blocks, size.block_size)
        self._banned = torch.tensor(model.banned_ids, dtype=torch.int64, device=model.device)
        width = -(-size.max_model_len // size.block_size)
        self._tables = Tables(self._max_rows, width)
        self._packer = Packer(streams, _packed_bytes(config.max_batched_tokens, self._max_rows, width))
        self._results = Results(streams)
        self._uploads = Uploads(streams)
        self._graphs: DecodeGraphs | None = None
        self._kept = media.Kept(device_embeddings(config) if streams.behind else 0)

    def capture_graphs(self, config: EngineConfig) -> None:
        self._graphs = captured(self._model, self._kv, self._size, config, self._packer)

    @torch.inference_mode()
    def run(self, plan: Plan, sequences: Scheduler) -> Outcome:
        """Run the plan. Failed media and logits without a token are named in the outcome; any other error is fatal."""
        started = time.perf_counter()
        self._kept.trim(sequences.__contains__)
        read, failed = self._encode(plan, sequences)
        plan = plan.without(failed)
        encoded = time.perf_counter()
        seconds = {"encode": encoded - started} if read or failed else {}
        if not plan.chunks:
            return Outcome(tokens={}, read=read, failed=failed, seconds=seconds)
        step, draws, arrays = self._send(plan, sequences)
        logits, scored = self._forward(plan, step, arrays)
        forwarded = time.perf_counter()
        tokens, scores = self._finish(plan, draws, logits, arrays, scored)
        stage = "prefill" if step.n_tokens > len(plan.chunks) else "decode"
        ended = time.perf_counter()
        seconds |= {stage: forwarded - encoded, "sample": ended - forwarded}
        if self._streams.behind:
            seconds["host"] = ended - encoded - self._results.waited
        if step.padding is not None and self._graphs is not None:
            seconds["graph_update"] = self._graphs.update_seconds
        drawn = {key: token for key, token in tokens.items() if token is not None}
        if len(drawn) < len(tokens):
            lost = {key[0]: self._lost(_row(sequences[key])) for key in tokens.keys() - drawn.keys()}
            failed |= lost
            drawn = {key: token for key, token in drawn.items() if key[0] not in lost}
        return Outcome(tokens=drawn, scores=scores, read=read, failed=failed, seconds=seconds)

    def _encode(self, plan: Plan, sequences: Scheduler) -> tuple[dict[str, tuple[str, ...]], dict[str, RequestError]]:
        """(segments that were read, errors), by request."""
        read: dict[str, tuple[str, ...]] = {}
        failed: dict[str, RequestError] = {}
        for chunk in plan.chunks:
            if not chunk.encode:
                continue
            sequence = sequences[chunk.key]
            fresh: list[SequenceMedia] = []  # only the device has their embeddings
            try:
                for item in (sequence.media[i] for i in chunk.encode):
                    upload = media.read(item, self._root, self._uploads)
                    if item.segment is not None:
                        read[chunk.request_id] = (*read.get(chunk.request_id, ()), item.segment.name)
                    item.segment = None
                    if not self._kept.has_room(fresh):
                        self._settle(sequence, fresh)
                    media.encode(item, upload, self._model)
                    fresh.append(item)
                self._settle(sequence, fresh)
            except RequestError as error:
                for item in fresh:
                    item.on_device = None
                failed[chunk.request_id] = error
                _log.warning("request %s failed: %s", chunk.request_id, error, exc_info=error.__cause__)
        return read, failed

    def _settle(self, sequence: Answer, fresh: list[SequenceMedia]) -> None:
        """Into host memory; as many as the device has room for stay there, too. Leaves `fresh` empty."""
        media.settle(fresh, self._streams)
        self._kept.add(sequence, fresh)
        fresh.clear()

    def _send(self, plan: Plan, sequences: Scheduler) -> tuple[Step, Draws, dict[str, Tensor]]:
        """What the step computes and draws, and its arrays on the device."""
        answers = [sequences[chunk.key] for chunk in plan.chunks]
        rows: list[Row] = []
        for chunk, answer in zip(plan.chunks, answers, strict=True):
            if chunk.samples:
                rows.append(_row(answer))
                rows += [_row(sequences[chunk.request_id, index]) for index in chunk.followers]
        step = Step(plan, answers, self._tables, self._size.block_size)
        draws = Draws(rows, self._model.vocab_size)
        if self._graphs is not None and step.decodes:
            step.padding = self._graphs.padding_for(len(answers), step.table_blocks)
        packing = self._packer.open([*step.fields(), *draws.fields()])
        step.write(packing.host)
        draws.write(packing.host)
        return step, draws, packing.send()

    def _forward(self, plan: Plan, step: Step, arrays: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, "_Scored"]]:
        """float32 logits [draws, vocab], and what tokens of prompts get, by request."""
        batch = step.batch(arrays)
        scored: dict[str, _Scored] = {}
        if step.padding is not None and self._graphs is not None:
            return self._model.logits(self._graphs.replay(batch)[: step.n_drawn]), {}
        if step.scored:
            states = self._model.states(batch, self._kv)
            scored = self._score(plan, step, states[step.n_drawn :], arrays["scored"])
            logits = self._model.logits(states[: step.n_drawn])
        else:
            logits = self._model.forward(batch, self._kv)
        if "copies" in arrays:
            self._model.copy_blocks(self._kv, *arrays["copies"].unbind(0))
        return logits, scored

    def _score(self, plan: Plan, step: Step, states: Tensor, ids: Tensor) -> dict[str, "_Scored"]:
        """For each token that a chunk scores the one that follows it in the prompt. states, ids: of those, in order."""
        found: dict[str, _Scored] = {}
        row = 0
        for i in step.scored:
            first, last = plan.chunks[i].scored
            answer, rows = step.answers[i], slice(row, row + last - first)
            width = answer.sampling.top_logprobs
            parts = score(states[rows], ids[rows], width, self._model.logits, self._max_rows)
            found[answer.request_id] = _Scored(answer.ids[first + 1 : last + 1], width, parts)
            row = rows.stop
        return found

    def _finish(
        self, plan: Plan, draws: Draws, logits: Tensor, arrays: Mapping[str, Tensor], scored: Mapping[str, "_Scored"]
    ) -> tuple[dict[Key, Token | None], dict[str, tuple[Token, ...]]]:
        """Draw, and read back all that is wanted of the step: (token by sequence, tokens of prompts by request)."""
        parts = [part for of_prompt in scored.values() for part in of_prompt.parts]
        if draws.rows:
            parts.append(sample(logits, draws, arrays, self._banned, behind=self._streams.behind))
        found = self._results.fetch(*parts)
        tokens = tokens_of(found.pop(), draws) if draws.rows else []
        scores: dict[str, tuple[Token, ...]] = {}
        for name, (ids, width, own) in scored.items():
            scores[name] = scored_tokens(ids, found[: len(own)], width)
            del found[: len(own)]
        keys = [key for chunk in plan.chunks for key in chunk.draws]
        return dict(zip(keys, tokens, strict=True)), scores

    def _lost(self, row: Row) -> RequestError:
        """Why nothing could be drawn: the request's own rules, or logits that are not finite."""
        if exhausted(row, self._model.banned_ids):
            return RequestError("the request allows no token", "nothing_allowed")
        return RequestError(_NO_TOKEN)


def captured(
    model: MultimodalLM, kv: KVCache, size: CacheSize, config: EngineConfig, packer: Packer | None = None
) -> DecodeGraphs | None:
    """Graphs of decode steps over this cache, None where there are none. packer: of the steps; None: only to try."""
    module = graph_module(model.device)
    if not config.graphs or module is None:
        return None
    width, rows = -(-size.max_model_len // size.block_size), min(config.max_seqs, config.max_batched_tokens)
    place = Place(n_blocks=size.n_blocks, reserved=size.reserved, block_size=size.block_size, width=width)
    packer = packer or Packer(open_streams(model.device), _packed_bytes(config.max_batched_tokens, rows, width))
    return DecodeGraphs(model, kv, packer, place, ladder(min(rows, size.n_blocks)), module)


class _Scored(NamedTuple):
    """Tokens of one prompt, and what `score` made of them."""

    ids: np.ndarray  # int64 [n]
    width: int
    parts: list[Tensor]


def _row(sequence: Answer) -> Row:
    return Row(sequence.sampling, sequence.n_tokens, sequence.history)


def reserved_for_graphs(config: EngineConfig, device: torch.device) -> int:
    """Blocks of the cache that padding is written to."""
    if not config.graphs or graph_module(device) is None:
        return 0
    return reserved_blocks(min(config.max_seqs, config.max_batched_tokens), config.block_size)


def _packed_bytes(tokens: int, rows: int, width: int) -> int:
    """Of the largest step, and of what rules look at in most."""
    fields = step_fields(tokens=max(tokens, rows), sequences=rows, width=width, samples=rows)
    return sum(field.nbytes for field in fields) + rows * _RULES_BYTES
