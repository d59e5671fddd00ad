"""A request as its server has it, what a worker prepares of it, and a runner that keeps what it encoded by name."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from model.engine.engine import Engine
from model.engine.messages import Generate, SamplingParams, Token
from model.engine.plan import Outcome, Plan, RequestError
from model.engine.sequence import StoreKey
from model.net.multimodal import MultimodalLM
from shm import encode_shape_to_int64, encode_shm_name_to_int64
from tokenization.messages import MediaItem, Prepared

TEXT = 4  # ids before each medium
CAPACITY = 64 * 4 * 14  # bytes of embeddings: two or three media


def tokens_of(medium: int) -> int:
    return 4 + medium


def key_of(medium: int) -> bytes:
    return bytes([medium]) * 32


@dataclass
class Job:
    """A request as its server has it."""

    name: str
    media: tuple[int, ...]
    n: int
    state: str = "new"  # leased, prepared, inside, leaving, done
    with_kept: bool = True
    names: list[str] = field(default_factory=list)  # "": promised
    tokens: int = 0


class RunnerDouble:
    """Stands where a device would: of each embedding it has the medium that it was made of."""

    def __init__(self, engine: Engine, segments: dict[str, int], jobs: dict[str, Job], broken: set[str]) -> None:
        self._scheduler = engine._scheduler
        self._segments, self._jobs, self._broken = segments, jobs, broken
        self.embeddings: dict[StoreKey, int] = {}

    def let_go(self, plan: Plan) -> tuple[StoreKey, ...]:
        for key in plan.freed:
            del self.embeddings[key]
        return plan.freed

    def run(self, plan: Plan, batch: Any) -> Outcome:
        dropped, filled, read, failed = self.let_go(plan), [], [], {}
        for item in plan.encodes:
            assert item.segment is not None and item.stored not in self.embeddings, "encoded without need"
            if item.segment.name in self._broken:
                failed[item.key] = RequestError("it is gone", "media_unavailable")
                continue
            self.embeddings[item.stored] = self._segments[item.segment.name]
            filled.append(item.stored)
            read.append(item.key)
        lost = {request_id for request_id, _ in failed}
        for chunk in plan.chunks:
            for item in self._scheduler[chunk.key].media:
                reached = any(start < chunk.stop and start + n > chunk.start for start, n in item.spans)
                if reached and chunk.request_id not in lost:
                    assert self.embeddings[item.stored] == self._jobs[chunk.request_id].media[item.key[1]], (
                        "a wrong hit"
                    )
        drawn = [
            (chunk.request_id, index)
            for chunk in plan.chunks
            if chunk.samples and chunk.request_id not in lost
            for index in (chunk.index, *chunk.followers)
        ]
        tokens = {key: (Token(id=1),) for key in drawn}
        return Outcome(tokens=tokens, read=tuple(read), filled=tuple(filled), failed=failed, dropped=dropped)


def generate_of(job: Job, model: MultimodalLM) -> Generate:
    """What a worker prepares: words where there is a lease, else pads alone."""
    pad = model.placeholder_ids["image"]
    ids: list[int] = []
    media: list[MediaItem] = []
    for medium, name in zip(job.media, job.names, strict=True):
        ids += [5] * TEXT
        n = tokens_of(medium)
        span = (len(ids), n)
        ids += [pad] * n
        grid = (1, 2, 2 * n)
        if name:
            ids[span[0]] = encode_shm_name_to_int64(name)
            ids[span[0] + 1] = encode_shape_to_int64(model.encoders["image"].input_shape(grid))
        media.append(MediaItem(kind="image", spans=(span,), grid=grid, key=key_of(medium)))
    ids += [6] * TEXT
    prepared = Prepared(
        request_id=job.name, input_ids=np.array(ids), media=tuple(media), position_delta=0, seconds={},
        positions=np.broadcast_to(np.arange(len(ids), dtype=np.int32), (3, len(ids))),
    )  # fmt: skip
    return Generate(prepared=prepared, sampling=SamplingParams(max_tokens=2, temperature=0.0, seed=0, n=job.n))
