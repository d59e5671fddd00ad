"""Runs one plan on the device: encode the media it reaches, one forward pass, one sampling. Knows no queues."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from configs.serve import EngineConfig
from model.engine import batch, media
from model.engine.kv_cache import CacheSize
from model.engine.media import RequestError
from model.engine.messages import Token
from model.engine.plan import Plan
from model.engine.profile import Profile, profile_on_device
from model.engine.rules import Row
from model.engine.sampler import sample
from model.engine.scheduler import Scheduler
from model.engine.sequence import Key
from model.net.multimodal import MultimodalLM
from tokenization.messages import MediaItem

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """What became of the media of one step."""

    read: Mapping[str, tuple[str, ...]]  # request -> segments that were read to their end
    failed: Mapping[str, RequestError]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What came out of the forward pass of one step."""

    tokens: Mapping[Key, Token | None]  # one for each of the chunks' draws; None where the logits gave no token
    forward_seconds: float
    sample_seconds: float


class Runner:
    """The model with its cache. Sequences are looked up in the scheduler, which alone changes their progress."""

    def __init__(self, model: MultimodalLM, size: CacheSize, root: Path) -> None:
        self._model = model
        self._device = model.device
        self._size = size
        self._root = root
        self._kv = model.kv_cache(size.n_blocks, size.block_size)
        banned = sorted({*model.pad_ids.values(), *model.media_token_ids})
        self._banned = torch.tensor(banned, dtype=torch.int64, device=self._device)

    def profile(self, config: EngineConfig, largest: Sequence[MediaItem]) -> Profile:
        """Run the largest items and a full step over the cache, whose content is lost."""
        return profile_on_device(self._model, self._kv, self._size, config, largest)

    @torch.inference_mode()
    def encode(self, plan: Plan, sequences: Scheduler) -> Encoded:
        """Read and encode every medium that the plan reaches. A request whose medium fails is named, others go on."""
        started = time.perf_counter()
        names: dict[str, tuple[str, ...]] = {}
        failed: dict[str, RequestError] = {}
        for chunk in plan.chunks:
            sequence = sequences[chunk.key]
            try:
                for item in (sequence.media[i] for i in chunk.encode):
                    array = media.read(item, self._root)
                    if item.segment is not None:
                        names[chunk.request_id] = (*names.get(chunk.request_id, ()), item.segment.name)
                    item.segment = None
                    media.encode(item, array, self._model, self._device)
            except RequestError as error:
                failed[chunk.request_id] = error
                _log.warning("request %s failed: %s", chunk.request_id, error, exc_info=error.__cause__)
        return Encoded(read=names, failed=failed, seconds=time.perf_counter() - started)

    @torch.inference_mode()
    def run(self, plan: Plan, sequences: Scheduler) -> Sampled:
        """The forward pass of a plan that has chunks, and a token for each of their draws. Errors here are fatal."""
        started = time.perf_counter()
        logits = self._model.forward(batch.build(plan, sequences, self._size.block_size, self._device), self._kv)
        copies = [pair for chunk in plan.chunks for pair in chunk.copies]
        if copies:
            self._model.copy_blocks(self._kv, copies)
        forwarded = time.perf_counter()
        keys = [key for chunk in plan.chunks for key in chunk.draws]
        drawing = [sequences[key] for key in keys]
        rows = [Row(sampling=s.sampling, position=s.n_tokens, history=s.history) for s in drawing]
        tokens = dict(zip(keys, sample(logits, rows, self._banned), strict=True))
        done = time.perf_counter()
        return Sampled(tokens=tokens, forward_seconds=forwarded - started, sample_seconds=done - forwarded)
