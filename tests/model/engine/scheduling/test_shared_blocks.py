"""Clients whose sequences share blocks: what counts for whose share, and that no block in use holds anything else."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine.plan import Plan
from model.engine.scheduler import Scheduler
from model.engine.sequence import Sequence, Status
from tests.model.engine.bookkeeping import STOP, outcome, request, run, scheduler

SIZE = 4  # tokens of a block
FIRST, SECOND = 1, 2
SYSTEM = list(range(10, 50))  # 40 tokens that begin prompts, ten blocks


def asks(name: str, client: int, max_tokens: int, *, system: bool = True, own: int = 4, n: int = 1) -> Sequence:
    """A prompt of some tokens of its own, behind the system prompt or not."""
    ids = [*(SYSTEM if system else ()), *(1000 + ord(name[-1]) + i for i in range(own))]
    return request(name, len(ids), max_tokens, client=client, ids=ids, n=n)


def running(sched: Scheduler) -> set[str]:
    return {sequence.request_id for sequence in sched if sequence.status is Status.RUNNING}


def test_a_shared_block_counts_once_for_its_clients_share() -> None:
    """The first client's tables name 33 of 40 blocks and hold 13; the second holds 25, and one of its answers goes."""
    sched = scheduler(n_blocks=40, seqs=16, tokens=64, prefix_cache=True)
    for name in ("a0", "a1", "a2"):
        sched.add(asks(name, FIRST, 5))
        run(sched)
    for i in range(7):
        sched.add(asks(f"b{i}", SECOND, 40, system=False))
    while sched.allocator.n_free > sched.n_running:
        run(sched)
        for name in ("a0", "a1", "a2"):
            if name not in sched:
                sched.add(asks(name, FIRST, 5))
    named = [block for s in sched if s.client == FIRST for block in s.block_table]
    assert len(named) > 20 > len({*named}), "more than half of the cache by its tables, less by its blocks"
    sched.add(asks("a3", FIRST, 5))
    run(sched)
    assert "a3" in running(sched) and sched.gave_way > 0


def test_what_a_newcomer_takes_over_is_not_what_a_victim_leaves_it() -> None:
    """It shares ten blocks with the youngest, who leaves it none of them: the next has to go, too."""
    sched = scheduler(n_blocks=26, seqs=16, tokens=64, prefix_cache=True)
    for name, system in (("b0", False), ("b1", False), ("b2", True)):
        sched.add(asks(name, SECOND, 28, system=system))
        run(sched)
    while sched.allocator.n_free > 2:
        run(sched)
    shared = sched["b2", 0].block_table[:10]
    sched.add(asks("a0", FIRST, 8, own=24))  # six blocks, where the youngest leaves four
    run(sched)
    newcomer = sched["a0", 0]
    assert newcomer.status is Status.RUNNING and newcomer.n_cached == 40
    assert newcomer.block_table[:10] == shared and running(sched) == {"a0", "b0"}


def test_the_answers_to_a_prompt_that_give_way_are_not_what_the_same_prompt_begins_with() -> None:
    """Without a prefix cache their blocks go with them, and another client's answers to the same had found them."""
    sched = scheduler(n_blocks=16, seqs=8, tokens=64)
    sched.add(asks("a0", FIRST, 8, system=False))
    run(sched)
    sched.add(asks("a1", FIRST, 8, n=2))
    run(sched)
    run(sched)
    assert sched.allocator.n_free == 1
    sched.add(asks("b1", SECOND, 3, n=2))
    run(sched)
    assert sched.gave_way == 2 and "b1" in running(sched) and "a1" not in running(sched)
    while len(sched):
        run(sched)


class Slots:
    """What each slot of the cache would hold: all ids up to its token."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], tuple[int, ...]] = {}

    def step(self, sched: Scheduler, plan: Plan) -> None:
        """What a step reads is what its sequences wrote, or others for the same tokens; and it writes."""
        for chunk in plan.chunks:
            self._check(sched[chunk.key], chunk.start)
        for chunk in plan.chunks:
            sequence = sched[chunk.key]
            for at in range(chunk.start, chunk.stop):
                self._held[sequence.block_table[at // SIZE], at % SIZE] = tuple(sequence.ids[: at + 1].tolist())
        for chunk in plan.chunks:
            for source, target in chunk.copies:
                self._held |= {(target, i): self._held.get((source, i), ()) for i in range(SIZE)}
        for chunk in plan.chunks:
            self._check(sched[chunk.key], chunk.stop)

    def _check(self, sequence: Sequence, n: int) -> None:
        ids = sequence.ids.tolist()
        for at in range(n):
            assert self._held[sequence.block_table[at // SIZE], at % SIZE] == tuple(ids[: at + 1]), (sequence.key, at)


Arrival = tuple[int, int, int, int, int, int, int]  # client, beginning, prompt, max_tokens, stops after, step, n


@settings(max_examples=100)
@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(1, 40), st.integers(1, 20), st.integers(1, 25),
                  st.integers(0, 30), st.integers(1, 3)),
        min_size=1, max_size=14,
    ),
    aborts=st.dictionaries(st.integers(0, 13), st.integers(0, 60)), n_blocks=st.integers(15, 40),
    seqs=st.integers(1, 6), tokens=st.integers(1, 20), prefix_cache=st.booleans(),
)  # fmt: skip
def test_whoever_comes_no_block_in_use_holds_anything_else(
    arrivals: list[Arrival], aborts: dict[int, int], n_blocks: int, seqs: int, tokens: int, prefix_cache: bool
) -> None:
    sched, slots = scheduler(n_blocks=n_blocks, seqs=seqs, tokens=tokens, prefix_cache=prefix_cache), Slots()
    pending = sorted(enumerate(arrivals), key=lambda pair: pair[1][5])
    drawn: Counter[tuple[str, int]] = Counter()
    step = 0
    while pending or len(sched):
        while pending and pending[0][1][5] <= step:
            i, (client, begins, n_prompt, max_tokens, _, _, n) = pending.pop(0)
            ids = [100 * begins + at for at in range(n_prompt)]
            sched.add(request(str(i), n_prompt, max_tokens, client=client, ids=ids, n=n))
        for i, at in aborts.items():
            if at == step:
                sched.remove(str(i))
        plan = sched.plan()
        sched.check_integrity()
        slots.step(sched, plan)
        sampled = {}
        for chunk in plan.chunks:
            for key in chunk.sampled_keys:
                drawn[key] += 1
                sampled[key] = STOP if drawn[key] == arrivals[int(key[0])][4] else 1 + drawn[key] % 3
        sched.commit(plan, outcome(sampled, plan=plan))
        step += 1
        assert step < 5000
    sched.check_integrity()
    assert sched.allocator.n_used == 0
