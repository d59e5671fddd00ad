"""Requests, a scheduler, and what a runner would answer, made by hand: for tests of the books without tensors."""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Seq

import numpy as np

from model.engine.kv_blocks import BlockAllocator
from model.engine.messages import Finish, SamplingParams, Token, TokenEvent
from model.engine.plan import Outcome, Plan, RequestError
from model.engine.scheduler import Scheduler
from model.engine.scheduling.step_budget import Limits
from model.engine.sequence import EncoderInput, Key, SegmentRef, Sequence

STOP = 7


def outcome(tokens: Mapping[Key, int], failed: Collection[str] = (), plan: Plan | None = None) -> Outcome:
    """These ids were sampled, these requests failed, and all of the plan's other media were encoded."""
    encodes, freed = ((), ()) if plan is None else (plan.encodes, plan.freed)
    keys = [item.key for item in encodes if item.key[0] not in failed]
    return Outcome(
        tokens={key: (Token(id=token),) for key, token in tokens.items()},
        read=tuple(keys), filled=tuple(keys), dropped=freed,
        failed={(name, 0): RequestError("it failed") for name in failed},
    )  # fmt: skip


def finishes(events: Iterable[TokenEvent]) -> dict[Key, Finish | None]:
    """How each answer that got a token ended, if it did."""
    return {(event.request_id, event.index): event.finish for event in events}


def medium(key: tuple[str, int], *spans: tuple[int, int], nbytes: int = 0) -> EncoderInput:
    """A picture whose pads stand in these spans."""
    segment = SegmentRef(name="0" * 11, shape=(4, 588), dtype="uint8")
    return EncoderInput(key=key, kind="image", grid=(1, 2, 2), spans=spans, segment=segment, nbytes=nbytes)


def request(
    name: str, n_prompt: int, max_tokens: int, *, media: Seq[EncoderInput] = (), embedding_bytes: int = 0,
    client: int = 0, n: int = 1, ids: Seq[int] = (),
) -> Sequence:  # fmt: skip
    """embedding_bytes: of a picture at its first tokens, where no others are named; ids: of the prompt, else zeros."""
    if embedding_bytes and not media:
        media = [medium((name, 0), (0, 1), nbytes=embedding_bytes)]
    limit = n_prompt + max_tokens
    known = np.zeros(limit, np.int64)
    known[: len(ids)] = ids
    return Sequence(
        request_id=name, ids=known, n_prompt=n_prompt, limit=limit,
        positions=np.broadcast_to(np.arange(n_prompt), (3, n_prompt)), position_delta=0, media=tuple(media),
        n_tokens=n_prompt, client=client,
        sampling=SamplingParams(max_tokens=max_tokens, seed=0, stop_token_ids=(STOP,), n=n),
    )  # fmt: skip


def scheduler(
    n_blocks: int = 64, block_size: int = 4, seqs: int = 4, tokens: int = 16, embedding_bytes: int = 100,
    tables: int | None = None, prefix_cache: bool = False,
) -> Scheduler:  # fmt: skip
    """tables: blocks that a step may name beyond those of the cache; None without end."""
    limits = Limits(
        max_seqs=seqs, max_batched_tokens=tokens, embedding_bytes=embedding_bytes,
        max_table_blocks=None if tables is None else n_blocks + tables, prefix_cache=prefix_cache,
    )  # fmt: skip
    return Scheduler(BlockAllocator(n_blocks, block_size), limits)


def run(sched: Scheduler, token: int = 1) -> Plan:
    """One step in which every sampling chunk samples `token`."""
    plan = sched.plan()
    sched.commit(plan, outcome({key: token for chunk in plan.chunks for key in chunk.sampled_keys}, plan=plan))
    sched.check_integrity()
    return plan
