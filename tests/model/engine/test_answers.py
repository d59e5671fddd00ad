"""Several answers to one prompt: shared blocks, copies of the last one, and what every slot of the cache then holds."""

import tracemalloc
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine.kv_blocks import BlockAllocator, BlockError
from model.engine.messages import SamplingParams
from model.engine.plan import Plan
from model.engine.scheduler import Scheduler
from model.engine.scheduling.step_budget import Limits
from model.engine.sequence import Key, Sequence, Status
from tests.model.engine.bookkeeping import medium, outcome
from tests.tables import each_of

pytestmark = pytest.mark.slow

SIZE = 4
STOP = 7


def request(
    name: str, n_prompt: int, max_tokens: int, n: int, embedding_bytes: int = 0, common: int | None = None
) -> Sequence:
    """common: tokens after which its prompt is unlike those of others; None: none."""
    limit = n_prompt + max_tokens
    ids = np.zeros(limit, np.int64)
    if common is not None:
        ids[common:] = 100 + sum(map(ord, name))
    return Sequence(
        request_id=name, ids=ids, n_prompt=n_prompt, limit=limit,
        positions=np.broadcast_to(np.arange(n_prompt), (3, n_prompt)), position_delta=0, n_tokens=n_prompt,
        media=(medium((name, 0), (0, 1), nbytes=embedding_bytes),) if embedding_bytes else (),
        sampling=SamplingParams(max_tokens=max_tokens, seed=(1 << 63) - 2, n=n, stop_token_ids=(STOP,)),
    )  # fmt: skip


def scheduler(n_blocks: int = 64, seqs: int = 8, tokens: int = 16, *, prefix_cache: bool = False) -> Scheduler:
    limits = Limits(max_seqs=seqs, max_batched_tokens=tokens, embedding_bytes=50, prefix_cache=prefix_cache)
    return Scheduler(BlockAllocator(n_blocks, SIZE), limits)


class Cache:
    """What stands in every slot: the tokens and media that its keys and values are computed from."""

    def __init__(self, sched: Scheduler) -> None:
        self._sched = sched
        self._slots: list[object] = [None] * (sched.allocator.n_blocks * SIZE)
        self._of_key: dict[bytes, list[object]] = {}
        self.copied = 0

    def run(self, plan: Plan) -> None:
        """Check that every chunk finds its past, write what it computes, then copy."""
        truths = [self._truths(chunk.key, chunk.stop) for chunk in plan.chunks]
        for chunk, truth in zip(plan.chunks, truths, strict=True):
            table = self._sched[chunk.key].block_table
            assert [self._at(table, i) for i in range(chunk.start)] == truth[: chunk.start], chunk
        for chunk, truth in zip(plan.chunks, truths, strict=True):
            table = self._sched[chunk.key].block_table
            for block in table[chunk.start // SIZE : -(-chunk.stop // SIZE)]:
                assert self._sched.allocator._keys[block] is None, "a block that others may hold is written"
                assert self._holders(block) <= {chunk.key, *chunk.sampled_keys}
            for i in range(chunk.start, chunk.stop):
                self._slots[table[i // SIZE] * SIZE + i % SIZE] = truth[i]
        for chunk in plan.chunks:
            for source, target in chunk.copies:
                self._slots[target * SIZE : target * SIZE + SIZE] = self._slots[source * SIZE : source * SIZE + SIZE]
                self.copied += 1

    def check_keys(self) -> None:
        """A block with a key holds the same from when it was full until it is taken for something else."""
        for block, key in enumerate(self._sched.allocator._keys):
            if key is not None:
                found = self._slots[block * SIZE : block * SIZE + SIZE]
                assert self._of_key.setdefault(key.digest, found) == found

    def _at(self, table: list[int], i: int) -> object:
        return self._slots[table[i // SIZE] * SIZE + i % SIZE]

    def _truths(self, key: Key, stop: int) -> list[int]:
        """Of each of the first tokens a number of it and all before it: ids, positions, and media that have begun."""
        sequence = self._sched[key]
        tokens: list[Any] = [*zip(sequence.ids[:stop].tolist(), *sequence.positions_of(0, stop).tolist(), strict=True)]
        for item in sequence.media:
            if item.first < stop:
                tokens[item.first] += (item.content or item.key, item.spans)
        chain = accumulate(tokens, lambda past, token: hash((past, token)), initial=hash(sequence.root))
        return [*chain][1:]

    def _holders(self, block: int) -> set[Key]:
        return {s.key for s in self._sched if block in s.block_table}


def step(sched: Scheduler, cache: Cache, stops: Mapping[Key, bool] | None = None) -> Plan:
    plan = sched.plan()
    sched.check_integrity()
    cache.run(plan)
    keys = [key for chunk in plan.chunks for key in chunk.sampled_keys]
    sched.commit(plan, outcome({key: STOP if stops and stops.get(key) else 10 + key[1] for key in keys}, plan=plan))
    sched.check_integrity()
    cache.check_keys()
    return plan


def test_a_prompt_is_computed_once_and_its_whole_blocks_are_shared() -> None:
    sched = scheduler()
    cache = Cache(sched)
    sched.add(request("a", 10, 6, n=3))
    assert [s.key for s in sched] == [("a", 0), ("a", 1), ("a", 2)]
    (chunk,) = step(sched, cache).chunks
    assert (chunk.start, chunk.stop, chunk.followers) == (0, 10, (1, 2)) and len(chunk.copies) == 2
    assert chunk.sampled_keys == (("a", 0), ("a", 1), ("a", 2))
    tables = [s.block_table for s in sched]
    assert len({tuple(table[:2]) for table in tables}) == 1  # two whole blocks are common
    assert len({table[2] for table in tables}) == 3 and sched.allocator.n_used == 5
    assert [c.stop - c.start for c in step(sched, cache).chunks] == [1, 1, 1]
    while len(sched):
        step(sched, cache)
    assert sched.allocator.n_used == 0


def test_a_prompt_of_whole_blocks_needs_no_copy() -> None:
    sched = scheduler()
    cache = Cache(sched)
    sched.add(request("a", 8, 3, n=4))
    assert step(sched, cache).chunks[0].copies == () and sched.allocator.n_used == 2
    step(sched, cache)
    assert sched.allocator.n_used == 6 and cache.copied == 0


@each_of("prefix_cache", [True, False])
def test_the_others_come_in_with_the_step_that_ends_the_prompt(prefix_cache: bool) -> None:
    sched = scheduler(tokens=5, prefix_cache=prefix_cache)
    cache = Cache(sched)
    sched.add(request("a", 13, 3, n=3))
    sched.add(request("later", 2, 3, n=1, common=0))
    plans = [step(sched, cache) for _ in range(2)]
    assert [[(c.key, c.start, c.stop) for c in plan.chunks] for plan in plans] == [
        [(("a", 0), 0, 5)],
        [(("a", 0), 5, 10)],
    ]
    assert [s.status for s in sched] == [Status.RUNNING, *[Status.WAITING] * 3]
    chunk, other = step(sched, cache).chunks
    assert (chunk.start, chunk.stop, chunk.followers) == (10, 13, (1, 2)) and other.key == ("later", 0)
    assert cache.copied == 2 and [s.n_computed for s in sched][:3] == [13] * 3
    assert [s.n_charged for s in sched][:3] == [13] * 3


def test_an_answer_without_a_place_takes_the_whole_blocks_later() -> None:
    sched = scheduler(seqs=2)
    cache = Cache(sched)
    sched.add(request("a", 10, 3, n=3))
    step(sched, cache)
    assert sched.n_running == 2 and sched.n_waiting == 1
    plan = step(sched, cache, {("a", 0): True})
    assert ("a", 0) not in [s.key for s in sched]
    late = step(sched, cache).chunks[-1]
    assert (late.key, late.start, late.stop, late.samples) == (("a", 2), 8, 10, True), plan


def test_a_leader_that_is_aborted_leaves_its_whole_blocks_to_the_next() -> None:
    sched = scheduler(tokens=6, prefix_cache=True)
    cache = Cache(sched)
    sched.add(request("b", 1, 20, n=1))
    step(sched, cache)
    sched.add(request("a", 15, 3, n=3))
    for _ in range(2):
        step(sched, cache)
    assert [s.status for s in sched] == [Status.RUNNING, Status.RUNNING, Status.WAITING, Status.WAITING]
    assert sched["a", 0].n_computed == 10
    assert sched.remove("a", 0)
    sched.check_integrity()
    plan = step(sched, cache)
    assert [(c.key, c.start) for c in plan.chunks] == [(("b", 0), 3), (("a", 1), 8)]
    while "a" in sched:
        step(sched, cache)


def test_answers_end_one_by_one_and_the_request_with_the_last() -> None:
    sched = scheduler()
    cache = Cache(sched)
    sched.add(request("a", 5, 9, n=3, embedding_bytes=40))
    step(sched, cache)
    step(sched, cache, {("a", 1): True})
    assert [s.index for s in sched] == [0, 2] and sched.embeddings.reserved == 40
    assert sched.remove("a", 1) is False and sched.remove("a", 0) is True
    assert sched.embeddings.reserved == 40 and "a" in sched
    step(sched, cache, {("a", 2): True})
    assert "a" not in sched and sched.embeddings.reserved == 0 and sched.allocator.n_used == 0


def test_answers_that_wait_hold_one_window() -> None:
    """numpy's allocations, as Python counts them: 2 MiB for each answer of 262,144 tokens before."""
    first = request("a", 100, 262_144 - 100, n=8)
    first.ids[:100] = np.arange(100)
    tracemalloc.start()
    try:
        answers = [first, *(first.answer(i) for i in range(1, 8))]
        assert tracemalloc.get_traced_memory()[0] < 1 << 18
    finally:
        tracemalloc.stop()
    for number in range(3):
        for answer in answers:
            answer.append(1000 * answer.index + number)
    for answer in answers:
        generated = [1000 * answer.index + number for number in range(3)]
        assert answer.ids[: answer.n_tokens].tolist() == [*range(100), *generated]


def test_every_answer_draws_with_its_own_seed() -> None:
    sched = scheduler()
    sched.add(request("a", 5, 9, n=3))
    assert [s.sampling.seed for s in sched] == [(1 << 63) - 2, (1 << 63) - 1, -(1 << 63)]
    assert all(s.sampling == msgspec.structs.replace(sched["a", 0].sampling, seed=s.sampling.seed) for s in sched)
    sched["a", 1].append(3)
    assert sched["a", 0].ids[5] == 0 and sched["a", 0].history.generated == 0  # nothing but the prompt is common


def test_a_planted_count_is_noticed() -> None:
    sched = scheduler()
    sched.add(request("a", 10, 6, n=2))
    sched.commit(sched.plan(), outcome({("a", 0): 1, ("a", 1): 1}))
    sched.check_integrity()
    sched["a", 1].block_table[0] = sched["a", 1].block_table[1]  # as many blocks, counted for another one
    with pytest.raises(BlockError, match="counted"):
        sched.check_integrity()


Arrival = tuple[int, int, int, int, int]  # prompt, max_tokens, n, embedding bytes, arrives at step
ARRIVALS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 14), st.integers(1, 5), st.integers(0, 50), st.integers(0, 20)),
    min_size=1, max_size=8,
)  # fmt: skip
ABORTS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 7), st.sampled_from([None, 0, 1, 2, 3])), max_size=6)


@settings(max_examples=150)
@given(
    arrivals=ARRIVALS, aborts=ABORTS, n_blocks=st.integers(11, 40), seqs=st.integers(1, 8), tokens=st.integers(1, 20),
    stops=st.sets(st.tuples(st.integers(0, 7), st.integers(0, 4), st.integers(1, 10)), max_size=12),
    prefix_cache=st.booleans(), common=st.integers(0, 16),
)  # fmt: skip
def test_whatever_arrives_every_answer_finds_its_past(
    arrivals: list[Arrival], aborts: list[tuple[int, int, int | None]], n_blocks: int, seqs: int, tokens: int,
    stops: set[tuple[int, int, int]], prefix_cache: bool, common: int,
) -> None:  # fmt: skip
    """Blocks are counted, prompts and answers stand where their readers look, and everybody ends."""
    sched = scheduler(n_blocks, seqs, tokens, prefix_cache=prefix_cache)
    cache = Cache(sched)
    pending = sorted(enumerate(arrivals), key=lambda pair: pair[1][4])
    at = 0
    while pending or len(sched):
        while pending and pending[0][1][4] <= at:
            i, (n_prompt, max_tokens, n, nbytes, _) = pending.pop(0)
            sched.add(request(str(i), n_prompt, max_tokens, n, nbytes, common))
        for when, i, index in aborts:
            if when == at:
                sched.remove(str(i), index)
                sched.check_integrity()
        wanted = {s.key: (int(s.request_id), s.index, s.history.generated + 1) in stops for s in sched}
        plan = step(sched, cache, wanted)
        assert bool(plan.chunks) == bool(wanted) and plan.n_tokens <= tokens and sched.n_running <= seqs
        at += 1
        assert at < 4000
    assert sched.allocator.n_used == 0 and sched.embeddings.reserved == 0
