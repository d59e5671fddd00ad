"""Clients in one engine: who is next, who gives way, and that nobody starves, as bookkeeping without tensors."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine.scheduler import Scheduler
from model.engine.scheduling.giving_way import TURN_TOKENS
from model.engine.sequence import Status
from tests.model.engine.bookkeeping import STOP, outcome, request, run, scheduler

pytestmark = pytest.mark.slow

GREEDY, OTHER, THIRD = 1, 2, 3
Counted = Counter[int]


def filled(n: int, **sizes: Any) -> Scheduler:
    """`n` long answers of one client, as many of them decoding as there is room for, and the others waiting."""
    sched = scheduler(**sizes)
    for i in range(n):
        sched.add(request(f"greedy{i}", 4, 60, client=GREEDY))
    for _ in range(6):
        run(sched)
    return sched


def clients_of(sched: Scheduler, status: Status) -> Counted:
    return Counter(sequence.client for sequence in sched if sequence.status is status)


def test_a_newcomers_chat_is_in_the_next_step_though_another_one_holds_every_seat() -> None:
    sched = filled(20, n_blocks=200, seqs=8, tokens=16)
    assert clients_of(sched, Status.RUNNING) == {GREEDY: 8}
    sched.add(request("chat", 14, 3, client=OTHER))
    plan = run(sched)
    assert [(chunk.start, chunk.stop, chunk.samples) for chunk in plan.chunks if chunk.request_id == "chat"] == [
        (0, 14, True)
    ]
    assert clients_of(sched, Status.RUNNING) == {GREEDY: 7, OTHER: 1} and sched.preemptions == 1


def test_a_newcomers_chat_is_in_the_next_step_though_another_one_holds_every_block() -> None:
    sched = filled(20, n_blocks=40, seqs=20, tokens=32)
    for _ in range(10):
        run(sched)
    sched.add(request("chat", 14, 3, client=OTHER))
    assert "chat" in [chunk.request_id for chunk in run(sched).chunks]


def test_a_newcomer_goes_before_the_decodes_that_fill_the_step() -> None:
    """There are as many of them as a step has tokens: none would be left for a prompt."""
    sched = filled(16, n_blocks=400, seqs=16, tokens=16)
    assert run(sched).n_tokens == 16
    sched.add(request("chat", 16, 3, client=OTHER))
    assert [(chunk.request_id, chunk.stop - chunk.start) for chunk in run(sched).chunks] == [("chat", 16)]
    lengths = [Counter(sched[chunk.key].client for chunk in run(sched).chunks) for _ in range(2)]
    assert all(step[GREEDY] >= 15 for step in lengths), "and the decodes wait for it no longer than a step"


def test_a_newcomer_goes_before_the_prompts_that_came_first() -> None:
    sched = scheduler(n_blocks=400, tokens=16)
    for i in range(4):
        sched.add(request(f"greedy{i}", 300, 3, client=GREEDY))
    run(sched)
    sched.add(request("chat", 10, 3, client=OTHER))
    assert [(chunk.request_id, chunk.stop - chunk.start) for chunk in run(sched).chunks] == [
        ("chat", 10),
        ("greedy0", 6),
    ]


def test_a_client_that_is_alone_is_served_as_it_came_and_may_have_everything() -> None:
    sched = filled(8, n_blocks=400, seqs=8)
    assert clients_of(sched, Status.RUNNING) == {GREEDY: 8} and not sched.preemptions


def test_nobody_gives_way_to_one_who_has_its_share() -> None:
    sched = filled(20, n_blocks=400, seqs=8, tokens=64)
    for i in range(10):
        sched.add(request(f"other{i}", 4, 60, client=OTHER))
    for _ in range(3):
        run(sched)
    assert clients_of(sched, Status.RUNNING) == {GREEDY: 4, OTHER: 4}
    preemptions = sched.preemptions
    for _ in range(20):
        run(sched)
    assert sched.preemptions == preemptions == 4
    for i in range(10):
        sched.add(request(f"third{i}", 4, 60, client=THIRD))
    run(sched)
    assert clients_of(sched, Status.RUNNING)[THIRD] == 2 and sched.preemptions == 6


def test_no_clients_oldest_answer_gives_way() -> None:
    """More clients than seats: each that runs goes on to its end, and the others have the next seats in turn."""
    sched = scheduler(n_blocks=400, seqs=4)
    for client in range(12):
        sched.add(request(f"c{client}", 4, 10, client=client))
    steps = 0
    while len(sched):
        run(sched)
        steps += 1
    assert not sched.preemptions and steps <= 3 * 12


def test_an_oldest_answer_gives_way_after_its_turn_to_a_client_without_a_seat() -> None:
    """Four of nine clients have a seat: a newcomer's chat waits for two rounds of turns at most, and all end."""
    sched = scheduler(n_blocks=4000, seqs=4)
    for client in range(8):
        sched.add(request(f"c{client}", 4, 3 * TURN_TOKENS, client=client))
        run(sched)
    for _ in range(TURN_TOKENS + 10):
        run(sched)
    assert sched.gave_way >= 4
    sched.add(request("chat", 4, 2, client=100))
    waited = 0
    while "chat" in sched:
        run(sched)
        waited += 1
    assert waited <= 2 * 2 * TURN_TOKENS
    while len(sched):
        run(sched)
        waited += 1
    assert waited < 8 * 3 * TURN_TOKENS and sched.gave_way < 40


def test_what_a_preemption_makes_the_model_compute_again_is_not_charged() -> None:
    sched = filled(20, n_blocks=400, seqs=8, tokens=64)
    sched.add(request("chat", 4, 3, client=OTHER))
    victim = next(s for s in reversed(list(sched)) if s.status is Status.RUNNING)
    run(sched)
    assert victim.status is Status.WAITING and victim.n_charged > victim.n_computed == 0


def test_embeddings_go_to_whoever_is_within_its_share_once_they_are_free() -> None:
    sched = scheduler(n_blocks=400, seqs=8, tokens=64, embedding_bytes=100)
    for i in range(6):
        sched.add(request(f"greedy{i}", 8, 10 + i, embedding_bytes=40, client=GREEDY))
    run(sched)
    assert sched.embeddings.reserved == 80
    sched.add(request("chat", 8, 3, embedding_bytes=40, client=OTHER))
    started: list[str] = []
    while len(sched):
        started += [s.request_id for s in sched if s.status is Status.RUNNING and s.request_id not in started]
        run(sched)
    assert started[:3] == ["greedy0", "greedy1", "chat"]


def test_who_needs_more_than_its_share_is_passed_only_for_so_long() -> None:
    """Small chats of three clients come without end, and one prompt needs nearly all of the cache."""
    sched = scheduler(n_blocks=40, seqs=8, tokens=32)
    sched.add(request("chat0", 4, 8, client=10))
    run(sched)
    sched.add(request("small", 4, 8, client=GREEDY))
    run(sched)
    sched.add(request("large", 140, 4, client=GREEDY))
    for i in range(1, 2000):
        if len(sched) < 12:
            sched.add(request(f"chat{i}", 12, 8, client=10 + i % 3))
        run(sched)
        if "large" not in sched:
            return
    pytest.fail("the large one never ran")


Arrival = tuple[int, int, int, int, int, int, int]  # client, prompt, max_tokens, stops after, embeddings, step, n


@settings(max_examples=100)
@given(
    arrivals=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 20), st.integers(1, 25), st.integers(0, 50),
                  st.integers(0, 30), st.integers(1, 3)),
        min_size=1, max_size=14,
    ),
    aborts=st.dictionaries(st.integers(0, 13), st.integers(0, 60)), n_blocks=st.integers(15, 40),
    seqs=st.integers(1, 6), tokens=st.integers(1, 20), tables=st.none() | st.integers(0, 20),
)  # fmt: skip
def test_whoever_comes_everybody_finishes(
    arrivals: list[Arrival], aborts: dict[int, int], n_blocks: int, seqs: int, tokens: int, tables: int | None
) -> None:
    sched = scheduler(n_blocks=n_blocks, seqs=seqs, tokens=tokens, embedding_bytes=50, tables=tables)
    pending = sorted(enumerate(arrivals), key=lambda pair: pair[1][5])
    drawn: Counter[tuple[str, int]] = Counter()
    ended: set[str] = set()
    step = 0
    while pending or len(sched):
        while pending and pending[0][1][5] <= step:
            i, (client, n_prompt, max_tokens, _, nbytes, _, n) = pending.pop(0)
            sched.add(request(str(i), n_prompt, max_tokens, embedding_bytes=nbytes, client=client, n=n))
        for i, at in aborts.items():
            if at == step and sched.remove(str(i)):
                ended.add(str(i))
        plan = sched.plan()
        sched.check_integrity()
        assert bool(plan.chunks) == (len(sched) > 0)  # there is always progress
        assert plan.n_tokens <= tokens and sched.n_running <= seqs and sched.embeddings.reserved <= 50
        sampled = {}
        for chunk in plan.chunks:
            assert len(sched[chunk.key].block_table) * 4 >= chunk.stop and chunk.stop - chunk.start >= 1
            assert chunk.start == sched[chunk.key].n_computed
            for key in chunk.sampled_keys:
                drawn[key] += 1
                sampled[key] = STOP if drawn[key] == arrivals[int(key[0])][3] else 1
        sched.commit(plan, outcome(sampled, plan=plan))
        ended |= {key[0] for key in sampled if key[0] not in sched}
        sched.check_integrity()
        step += 1
        assert step < 5000
    assert ended == {str(i) for i in range(len(arrivals))}
    assert sched.allocator.n_used == 0 and sched.embeddings.reserved == 0 and not sched._line.clocks.turns()
