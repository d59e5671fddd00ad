"""Runs steps on the device: encode the media of a plan, one forward pass over its batch, one sampling.

It knows no sequence and no scheduler: a plan and a batch are all that it gets, an outcome is all that it gives. The
host waits for the device once, for the tokens.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from configs.serve import EngineConfig
from model.device import block_size, first_line
from model.engine.batch import Batch, ScoredRows
from model.engine.encoding import Encoded, MediaEncoder
from model.engine.kv_blocks import CacheSize
from model.engine.messages import Token
from model.engine.plan import Outcome, Plan
from model.engine.ranks.link import CaptureMessage, FreeMessage, RankLink, refused_anywhere
from model.engine.sampling.logits_processors import BITS
from model.engine.sampling.sampler import NOT_FINITE, sample, sampling_bytes, score, scored_tokens, tokens_of
from model.engine.scheduling.step_budget import step_tokens
from model.engine.sequence import Key, StoreKey
from model.forward_batch import KVCache
from model.net.multimodal import MultimodalLM
from model.staging.embeddings import EmbeddingStore
from model.staging.graphs import DecodeGraphs, Place, Refused, graph_module, is_refused, ladder, reserved_blocks
from model.staging.layout import ForwardArrays, Padding, forward_batch, forward_layout, packed_bytes
from model.staging.packing import Field, Packer, Packing
from model.staging.streams import Streams, open_streams
from model.staging.transfers import Results, Uploads

_log = logging.getLogger("pixelferry")
_RULES_BYTES = 16 << 10  # of the packed copy, for each row: a thousand ids that rules look at
_SMALL_BLOCK = (1 << 20) - 512  # the largest that torch_npu's allocator keeps apart from large ones


@dataclass(slots=True, kw_only=True)
class Launched:
    """A step that the device was given; what it waits for is read by `Runner.collect`."""

    plan: Plan
    batch: Batch
    encoded: Encoded
    dropped: tuple[StoreKey, ...]
    sampled: Tensor | None  # as `sample` gives it
    late: Collection[int]  # its rows whose masks were not there
    scores: list[list[Tensor]]  # as `score` gives them, by prompt
    seconds: Mapping[str, float]


class Runner:
    """The model with its cache and its embeddings."""

    def __init__(
        self, model: MultimodalLM, size: CacheSize, root: Path, config: EngineConfig, streams: Streams,
        link: RankLink | None = None,
    ) -> None:  # fmt: skip
        """link: to the other ranks of an engine that is several processes. The first tells them what it does."""
        self._max_rows = min(config.max_seqs, step_tokens(config))  # of logits at once: the profile has no more
        self._model = model
        self._size = size
        self._streams = streams
        self._kv = model.kv_cache(size.n_blocks, size.block_size)
        banned = torch.tensor(model.banned_ids, dtype=torch.int64, device=model.device)
        if streams.behind and len(banned):
            banned = torch.zeros(model.vocab_size, device=model.device).index_fill_(0, banned, -torch.inf)
        self._banned = banned
        width = -(-size.max_model_len // size.block_size)
        self.packer = Packer(streams, _packed_bytes(step_tokens(config), self._max_rows, width))
        self._mask_packer = Packer(streams, 0)
        self._bits = torch.tensor(BITS, device=model.device) if streams.behind else torch.tensor(BITS[:8]).byte()
        self.embeddings = EmbeddingStore[StoreKey](streams)
        self._link = link
        self._leads = link is None or link.rank == 0
        shares = config.encoder_parallel == "data"
        self._encoder = MediaEncoder(model, root, Uploads(streams), self.embeddings, link, shares=shares)
        self._results = Results(streams)
        self._graphs: DecodeGraphs | None = None
        self._sampled: Tensor | None = None  # what the last step sampled, on the device: int32 [S, n], ids in front

    def capture_graphs(self, config: EngineConfig) -> None:
        if self._link is not None and self._leads:
            self._link.broadcast(CaptureMessage())
        refused = partial(refused_anywhere, self._link)
        self._graphs = captured(self._model, self._kv, self._size, config, self.packer, refused)

    def padding_for(self, kv_lens: Sequence[int]) -> Padding | None:
        """The padding that brings a decode step to a captured size; None: the step is launched.

        kv_lens: tokens of each sequence in the cache after it.
        """
        if self._graphs is None:
            return None
        return self._graphs.padding_for(len(kv_lens), sum([-(-n // self._size.block_size) for n in kv_lens]))

    def run(self, plan: Plan, batch: Batch) -> Outcome:
        """Run a step from beginning to end. An error of no single medium or answer is raised, and is fatal."""
        return self.collect(self.launch(plan, batch))

    def free(self, plan: Plan) -> tuple[StoreKey, ...]:
        """Free what the plan says, as the first thing of its step. -> media whose embeddings are gone"""
        dropped = self.embeddings.free(plan.freed)
        self.embeddings.offload(plan.offloaded)
        return dropped

    def let_go(self, plan: Plan) -> tuple[StoreKey, ...]:
        """The same of a plan without chunks."""
        if self._link is not None and (plan.freed or plan.offloaded):
            self._link.broadcast(FreeMessage(plan))
        return self.free(plan)

    @torch.inference_mode()
    def launch(self, plan: Plan, batch: Batch) -> Launched:
        """Give the device a step. The next may be launched before this one is collected.

        A rank that is not the first samples nothing, and has nothing to collect.
        """
        started = time.perf_counter()
        if self._link is not None and self._leads:
            self._link.send_step(plan, batch)
        dropped = self.free(plan)
        encoded = self._encoder.run(plan.encodes, plan.offloaded) if plan.encodes else Encoded()
        at = time.perf_counter()
        seconds = {"encode": at - started} if plan.encodes else {}
        arrays, sampling = batch.send()
        failed = {item.stored for item in plan.encodes if item.key in encoded.failed}
        header, asked = batch.header, batch.header.sampling
        sampled = packing = None
        late: list[int] = []
        if asked.n_masked and self._leads:
            packing = self._mask_packer.open([Field("int32", (asked.n_masked, -(-self._model.vocab_size // 32)))])
        try:
            logits, scores = self._forward(batch, arrays, failed)
            forwarded = time.perf_counter()
            if header.n_samples and self._leads:
                masks = None if packing is None else self._send_masks(packing, batch, late)
                sampled = sample(logits, asked, sampling, self._banned, masks, behind=self._streams.behind)
                self._sampled = sampled
            stage = "prefill" if len(header.q_lens) < sum(header.q_lens) else "decode"
            seconds[stage] = batch.build_seconds + forwarded - at
            seconds["sample"] = time.perf_counter() - forwarded
        finally:  # whatever fails behind a replay: nobody could wait for the device before its update
            if header.padded and self._graphs is not None:
                seconds["graph_update"] = self._graphs.update(header.kv_lens)
        seconds[stage] += seconds.get("graph_update", 0.0)
        return Launched(
            plan=plan, batch=batch, encoded=encoded, dropped=dropped, sampled=sampled, late=late, scores=scores,
            seconds=seconds,
        )  # fmt: skip

    def collect(self, step: Launched) -> Outcome:
        """Wait for a step, and read back all that is wanted of it."""
        started = time.perf_counter()
        parts = [part for of_prompt in step.scores for part in of_prompt]
        found = self._results.fetch(*parts, *([] if step.sampled is None else [step.sampled]))
        header, failed = step.batch.header, {request_id for request_id, _ in step.encoded.failed}
        tokens: dict[Key, tuple[Token, ...]] = {}
        late: frozenset[Key] = frozenset()
        spoiled: list[Key] = []
        if step.sampled is not None:
            keys = [key for chunk in step.plan.chunks for key in chunk.sampled_keys]
            sampled = found.pop()
            late = frozenset([keys[row] for row in step.late if sampled[row, 0] != NOT_FINITE])
            for key, row, token in zip(keys, sampled, tokens_of(sampled, header.sampling), strict=True):
                if key[0] not in failed and key not in late:
                    tokens[key] = () if token is None else (token,)
                    if token is None and row[0] == NOT_FINITE:
                        spoiled.append(key)
        scores: dict[str, tuple[Token, ...]] = {}
        first = 0
        for part, own in zip(header.scored, step.scores, strict=True):
            assert step.batch.host.scored is not None
            ids = step.batch.host.scored[first : first + part.n]
            first += part.n
            if part.request_id not in failed:
                scores[part.request_id] = scored_tokens(ids, found[: len(own)], part.top_logprobs)
            del found[: len(own)]
        seconds = dict(step.seconds)
        stage = "decode" if "decode" in seconds else "prefill"
        seconds["sample"] += time.perf_counter() - started
        if self._streams.behind:
            seconds["host"] = seconds[stage] + seconds["sample"] - self._results.waited
        return Outcome(
            tokens=tokens, late=late, spoiled=tuple(spoiled), scores=scores, read=tuple(step.encoded.read),
            filled=tuple(step.encoded.filled), failed=step.encoded.failed, dropped=step.dropped, seconds=seconds,
        )  # fmt: skip

    def _forward(
        self, batch: Batch, arrays: ForwardArrays[Tensor], failed: Collection[StoreKey]
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """float32 logits [samples, vocab], and what `score` gives of each prompt that is scored."""
        header = batch.header
        if arrays.prev_samples is not None:
            self._take_prev_samples(arrays.ids, arrays.prev_samples)
        inputs = forward_batch(
            arrays, self._media(batch, failed),
            q_lens=header.q_lens, kv_lens=header.kv_lens, prompt_lens=header.prompt_lens,
        )  # fmt: skip
        if header.padded:
            if self._graphs is None:
                raise RuntimeError("a step is padded to a graph that was not captured")
            self._take_memory(header.n_samples)
            return self._model.compute_logits(self._graphs.replay(inputs)[: header.n_samples]), []
        states = self._model.forward(inputs, self._kv)
        scores: list[list[Tensor]] = []
        if arrays.scored is not None:
            scores = self._score(header.scored, states[header.n_samples :], arrays.scored)
            states = states[: header.n_samples]
        logits = self._model.compute_logits(states)
        if arrays.copies is not None:
            self._model.copy_blocks(self._kv, *arrays.copies.unbind(0))
        return logits, scores

    def _take_memory(self, rows: int) -> None:
        """Memory for head and sampling of so many rows comes to torch's allocator, which keeps it.

        Behind a replay an allocator that finds none would wait for the device, and the device for the replay's update.
        """
        for nbytes in (sampling_bytes(rows, self._model.vocab_size), _SMALL_BLOCK):
            torch.empty(nbytes, dtype=torch.uint8, device=self._model.device)

    def _send_masks(self, packing: Packing, batch: Batch, late: list[int]) -> tuple[Tensor, Tensor]:
        """What rows that are held to a form may draw, as apply_rules takes it, by a copy of its own.

        late: gets the rows whose masks are not there.
        The device computes the forward pass meanwhile.
        """
        (host,) = packing.host
        assert host is not None and batch.write_masks is not None
        late += batch.write_masks(host)
        (masks,) = packing.send()
        assert masks is not None
        return masks, self._bits

    def _media(self, batch: Batch, failed: Collection[StoreKey]) -> Tensor | None:
        """[M, media_width]; rows of media that failed in this step are 0: nothing that comes of them is given out."""
        parts = []
        for item, first, last in batch.header.media:
            if item in failed:
                shape = (last - first, self._model.media_width)
                parts.append(torch.zeros(shape, dtype=self._model.dtype, device=self._model.device))
            else:
                parts.append(self.embeddings.part(item, first, last))
        return torch.cat(parts) if parts else None

    def _take_prev_samples(self, ids: Tensor, prev_samples: Tensor) -> None:
        """Put ids of the last step in their rows; what is none, below 0, as 0: its answer fails with that step."""
        if self._sampled is None:
            raise RuntimeError("a step takes samples of a step before it, and there is none")
        rows, samples = prev_samples.unbind(0)
        ids.index_copy_(0, rows, self._sampled[:, 0].index_select(0, samples).clamp(min=0).to(ids.dtype))

    def _score(self, prompts: Sequence[ScoredRows], states: Tensor, ids: Tensor) -> list[list[Tensor]]:
        """For each token that a prompt scores the one that follows it. states, ids: of those, in order."""
        found, first = [], 0
        for part in prompts:
            rows = slice(first, first + part.n)
            found.append(score(states[rows], ids[rows], part.top_logprobs, self._model.compute_logits, self._max_rows))
            first = rows.stop
        return found


def captured(
    model: MultimodalLM, kv: KVCache, size: CacheSize, config: EngineConfig, packer: Packer | None = None,
    refused: Refused = str, *, may_refuse: bool = True,
) -> DecodeGraphs | None:  # fmt: skip
    """Graphs of decode steps over this cache, None where there are none. packer: of the steps; None: only to try.

    refused: of ranks that capture together, as of DecodeGraphs. may_refuse: a device that refuses them is served
    without, and the log says so; else its RuntimeError is raised.
    """
    module = graph_module(model.device)
    if not config.graphs or module is None:
        return None
    width, rows = -(-size.max_model_len // size.block_size), min(config.max_seqs, step_tokens(config))
    place = Place(n_blocks=size.n_blocks, reserved=size.reserved, block_size=size.block_size, width=width)
    packer = packer or Packer(open_streams(model.device), _packed_bytes(step_tokens(config), rows, width))
    try:
        return DecodeGraphs(model, kv, packer, place, ladder(min(rows, size.n_blocks)), module, refused)
    except RuntimeError as error:
        if not (may_refuse and is_refused(error)):
            raise
        _log.warning("graphs of decode steps are refused (%s): every step is launched instead", first_line(error))
        return None


def reserved_for_graphs(config: EngineConfig, device: torch.device) -> int:
    """How many blocks of the cache the padding of graphs is written to."""
    return 0 if graph_module(device) is None else graph_blocks(config, device.type)


def graph_blocks(config: EngineConfig, kind: str) -> int:
    """The same of a kind of device that captures graphs."""
    return reserved_blocks(min(config.max_seqs, step_tokens(config)), block_size(config, kind)) if config.graphs else 0


def _packed_bytes(tokens: int, rows: int, width: int) -> int:
    """Bytes of the arrays of the largest step, and of the ids that most rules look at."""
    layout = forward_layout(tokens=max(tokens, rows), sequences=rows, width=width, samples=rows)
    return packed_bytes(layout) + rows * _RULES_BYTES
