"""Requests, a scheduler, and what a runner would answer, made by hand: for tests of the books without tensors."""

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq

import numpy as np

from model.engine.kv_blocks import BlockAllocator
from model.engine.messages import SamplingParams, Token
from model.engine.plan import Outcome, Plan, RequestError
from model.engine.scheduler import Limits, Scheduler
from model.engine.sequence import Key, SegmentRef, Sequence, SequenceMedia
from tokenization.messages import MediaItem


def outcome(tokens: Mapping[Key, int], failed: Collection[str] = ()) -> Outcome:
    """These ids were drawn, and these requests failed."""
    return Outcome(
        tokens={key: Token(id=token) for key, token in tokens.items()},
        read={},
        failed={name: RequestError("it failed") for name in failed},
        seconds={},
    )


STOP = 7


def item(*spans: tuple[int, int]) -> SequenceMedia:
    media = MediaItem(kind="image", spans=spans, grid=(1, 2, 2))
    return SequenceMedia(item=media, segment=SegmentRef(name="0" * 11, shape=(4, 588), dtype="uint8"))


def request(
    name: str,
    n_prompt: int,
    max_tokens: int,
    *,
    media: Seq[SequenceMedia] = (),
    embedding_bytes: int = 0,
    client: int = 0,
    n: int = 1,
) -> Sequence:
    limit = n_prompt + max_tokens
    return Sequence(
        request_id=name, ids=np.zeros(limit, np.int64), n_prompt=n_prompt, limit=limit,
        positions=np.broadcast_to(np.arange(n_prompt), (3, n_prompt)), position_delta=0, media=tuple(media),
        embedding_bytes=embedding_bytes, n_tokens=n_prompt, client=client,
        sampling=SamplingParams(max_tokens=max_tokens, seed=0, stop_token_ids=(STOP,), n=n),
    )  # fmt: skip


def scheduler(
    n_blocks: int = 64,
    block_size: int = 4,
    seqs: int = 4,
    tokens: int = 16,
    embedding_bytes: int = 100,
    tables: int | None = None,
) -> Scheduler:
    """tables: blocks that a step may name beyond those of the cache; None without end."""
    limits = Limits(
        max_seqs=seqs, max_batched_tokens=tokens, embedding_bytes=embedding_bytes,
        max_table_blocks=None if tables is None else n_blocks + tables,
    )  # fmt: skip
    return Scheduler(BlockAllocator(n_blocks, block_size), limits)


def run(sched: Scheduler, token: int = 1) -> Plan:
    """One step in which every sampling chunk draws `token`."""
    plan = sched.plan()
    sched.commit(plan, outcome({key: token for chunk in plan.chunks for key in chunk.draws}))
    sched.check_integrity()
    return plan
