"""Steps whose block tables may name only so many blocks together: answers that share a prompt take turns."""

import dataclasses
from collections.abc import Iterator, Sequence

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.engine.kv_blocks import BlockAllocator
from model.engine.plan import Plan
from model.engine.scheduler import Scheduler
from model.engine.scheduling.step_budget import Limits
from model.engine.sequence import Key, Status
from model.net.multimodal import MultimodalLM
from model.ops.base import PagedAttention
from model.ops.torch_ops import TorchOps
from tests.model.engine.engine_harness import Alone, EngineHarness, engine_at
from tests.model.engine.test_answers import SIZE, Cache, request, step
from tests.model.engine.test_parallel import ONE, SEEDED, TEXT, answers, singles_of
from tests.tables import each_of

pytestmark = pytest.mark.network


def scheduler(n_blocks: int, room: int | None, seqs: int = 8, tokens: int = 64) -> Scheduler:
    limits = Limits(max_seqs=seqs, max_batched_tokens=tokens, embedding_bytes=50, max_table_blocks=room)
    return Scheduler(BlockAllocator(n_blocks, SIZE), limits)


def named(plan: Plan) -> int:
    return sum(-(-chunk.stop // SIZE) for chunk in plan.chunks)


def steps(sched: Scheduler, room: int) -> Iterator[Plan]:
    """Run until nothing is left; each step keeps to the room, and nobody who runs waits for more than the others."""
    cache, waited = Cache(sched), dict[Key, int]()
    while len(sched):
        plan = step(sched, cache)
        assert plan.chunks and named(plan) <= room
        ran = {chunk.key for chunk in plan.chunks} | {key for chunk in plan.chunks for key in chunk.sampled_keys}
        waited = {s.key: 0 if s.key in ran else waited.get(s.key, 0) + 1 for s in sched if s.status is Status.RUNNING}
        assert all(n < sched.limits.max_seqs for n in waited.values())
        yield plan


def test_answers_to_a_long_prompt_take_turns() -> None:
    sched = scheduler(n_blocks=16, room=16)
    sched.add(request("a", 40, 5, n=4))  # eleven blocks each, ten of them common
    plans = list(steps(sched, 16))
    assert [c.stop - c.start for c in plans[0].chunks] == [40] and plans[0].chunks[0].followers == (1, 2, 3)
    assert [[c.index for c in plan.chunks] for plan in plans[1:]] == [[0], [1], [2], [3]] * 4


def test_where_nothing_bounds_the_tables_all_run_in_every_step() -> None:
    sched = scheduler(n_blocks=16, room=None)
    sched.add(request("a", 40, 5, n=4))
    assert [len(plan.chunks) for plan in steps(sched, 1 << 60)] == [1, 4, 4, 4, 4]


def test_whoever_fits_beside_the_longest_waiting_runs_with_it() -> None:
    sched = scheduler(n_blocks=23, room=23)
    sched.add(request("short", 4, 5, n=1))  # two blocks, then three
    sched.add(request("long", 40, 4, n=3))  # eleven
    plans = [[chunk.key for chunk in plan.chunks] for plan in steps(sched, 23)]
    first, others = [("short", 0), ("long", 0)], [("long", 1), ("long", 2)]
    assert plans == [first, first, others, first, others, first, others, [("short", 0)]]


def test_nobody_comes_in_while_others_wait_for_their_turn() -> None:
    sched = scheduler(n_blocks=32, room=32)
    sched.add(request("a", 40, 8, n=3))
    cache = Cache(sched)
    step(sched, cache)
    sched.add(request("later", 4, 2, n=1))
    while len([s for s in sched if s.request_id == "a"]) > 2:  # three of eleven blocks do not fit, two do
        assert "later" not in {chunk.request_id for chunk in step(sched, cache).chunks}
    assert {chunk.request_id for chunk in step(sched, cache).chunks} == {"a", "later"}


def test_a_prompt_that_is_cut_takes_its_turn_too() -> None:
    sched = scheduler(n_blocks=40, room=40, tokens=12)
    sched.add(request("answers", 20, 30, n=4))
    sched.add(request("prompt", 60, 2, n=1))
    starts = [chunk.start for plan in steps(sched, 40) for chunk in plan.chunks if chunk.request_id == "prompt"]
    assert starts == sorted(starts) and starts[0] == 0 and starts[-1] == 60


def test_separate_requests_are_planned_as_without_a_bound() -> None:
    def plans(room: int | None) -> list[Plan]:
        sched = scheduler(n_blocks=20, room=room, seqs=4, tokens=9)
        for i, n in enumerate((11, 3, 25, 8, 17)):
            sched.add(request(f"r{i}", n, 9, n=1))
        return list(steps(sched, 20))

    assert plans(20) == plans(None)


@given(
    requests=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=6),
    seqs=st.integers(1, 6),
    tokens=st.integers(1, 24),
    spare=st.integers(0, 12),
    leaves=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5), st.integers(0, 4)), max_size=4),
)
@settings(max_examples=120)
def test_whatever_arrives_fits_and_ends(
    requests: list[tuple[int, int, int]], seqs: int, tokens: int, spare: int, leaves: list[tuple[int, int, int]]
) -> None:
    """Requests of (prompt, tokens, answers); some answers leave. The cache holds the longest and little more."""
    n_blocks = max(-(-(n + most) // SIZE) for n, most, _ in requests) + spare
    sched = scheduler(n_blocks, n_blocks, seqs, tokens)
    for i, (n, most, answers_) in enumerate(requests):
        sched.add(request(f"r{i}", n, most, answers_))
    for i, _ in enumerate(steps(sched, n_blocks)):
        for at, which, index in leaves:
            if at == i:
                sched.remove(f"r{which}", index)
        assert i < 3000
    assert sched.allocator.n_used == 0


class BoundedOps(TorchOps):
    """A device on which a step's tables name at most as many blocks as the cache has."""

    most = 0

    def max_table_blocks(self, n_blocks: int, *, grouped: bool) -> int | None:
        self.most = n_blocks
        return n_blocks

    def plan_attention(
        self, q_lens: Sequence[int], kv_lens: Sequence[int], block_tables: Tensor, block_size: int
    ) -> PagedAttention:
        assert sum(-(-kv // block_size) for kv in kv_lens) <= self.most
        return super().plan_attention(q_lens, kv_lens, block_tables, block_size)


@each_of("greedy", [True, False])
def test_answers_in_turns_are_those_of_single_requests(
    model: MultimodalLM, harness: EngineHarness, alone: Alone, greedy: bool
) -> None:
    sampling = msgspec.structs.replace(SEEDED, n=3, temperature=0.0 if greedy else 1.2)
    expected = {"a": singles_of(alone, ONE, sampling, 3), "b": singles_of(alone, TEXT, sampling, 3)}
    bounded = dataclasses.replace(model, ops=BoundedOps(torch.device("cpu"), model.dtype))
    generates = [harness.prepare(name, parts, sampling) for name, parts in (("a", ONE), ("b", TEXT))]
    longest = max(len(generate.prepared.input_ids) for generate in generates) + 14
    engine = engine_at(bounded, harness.root, tokens=2048, block_size=4, kv_tokens=2 * longest, max_model_len=longest)
    for generate in generates:
        harness.submit(engine, generate)
    waited = 0
    while not engine.idle:
        harness.book(engine.step())
        waited = max(waited, *(s.n_waited for s in engine._scheduler), 0)
        engine.check_integrity()
    assert {name: answers(harness, name, 3) for name in expected} == expected
    assert waited > 0, "the bound was reached"
    harness.assert_clean(engine)
