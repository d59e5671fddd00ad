"""The scheduler as bookkeeping: order, budgets, preemption and the end of every request, without tensors."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine.kv_blocks import BlockError
from model.engine.messages import Token
from model.engine.plan import Outcome, Plan
from model.engine.scheduler import Scheduler
from model.engine.sequence import Status
from tests.model.engine.bookkeeping import STOP, finishes, medium, outcome, request, run, scheduler


def shares(plan: Plan) -> list[tuple[str, int, int]]:
    return [(chunk.request_id, chunk.start, chunk.stop) for chunk in plan.chunks]


def test_several_prefills_share_a_step_and_a_long_one_is_cut() -> None:
    sched = scheduler()
    for name, n in (("a", 5), ("b", 30), ("c", 3)):
        sched.add(request(name, n, 4))
    assert shares(run(sched)) == [("a", 0, 5), ("b", 0, 11)]
    assert shares(run(sched)) == [("a", 5, 6), ("b", 11, 26)]  # the decode first, the rest for the chunk
    assert shares(run(sched)) == [("a", 6, 7), ("b", 26, 30), ("c", 0, 3)]
    assert [s.request_id for s in sched] == ["a", "b", "c"]


def test_only_the_chunk_that_ends_the_prompt_samples() -> None:
    sched = scheduler()
    sched.add(request("a", 20, 2))
    assert [chunk.samples for chunk in sched.plan().chunks] == [False]
    sched.remove("a")
    sched.add(request("b", 16, 2))
    assert [chunk.samples for chunk in sched.plan().chunks] == [True]


def test_stop_and_length_end_a_request_and_free_its_blocks() -> None:
    sched = scheduler()
    for name in ("stopped", "cut"):
        sched.add(request(name, 3, 2))
    plan = sched.plan()
    tokens = {("stopped", 0): STOP, ("cut", 0): 1}
    assert finishes(sched.commit(plan, outcome(tokens))) == {("stopped", 0): "stop", ("cut", 0): None}
    assert "stopped" not in sched and sched.n_running == 1
    assert finishes(sched.commit(sched.plan(), outcome({("cut", 0): 1}))) == {("cut", 0): "length"}
    assert sched.allocator.n_used == 0 and sched.n_running == 0 and len(sched) == 0


def test_a_stop_token_as_the_last_allowed_one_is_a_stop() -> None:
    sched = scheduler()
    sched.add(request("a", 3, 1))
    assert finishes(sched.commit(sched.plan(), outcome({("a", 0): STOP}))) == {("a", 0): "stop"}


def test_several_tokens_of_one_step_end_with_the_first_that_stops() -> None:
    sched = scheduler()
    drawn = {"stopped": (1, STOP, 2), "cut": (1, 2, 3), "goes on": (1, 2)}
    for name in drawn:
        sched.add(request(name, 3, 2 if name == "cut" else 9))
    found = Outcome(tokens={(name, 0): tuple(Token(id=token) for token in ids) for name, ids in drawn.items()})
    events = sched.commit(sched.plan(), found)
    assert [(event.request_id, event.token.id, event.finish) for event in events] == [
        ("stopped", 1, None), ("stopped", STOP, "stop"), ("cut", 1, None), ("cut", 2, "length"),
        ("goes on", 1, None), ("goes on", 2, None),
    ]  # fmt: skip
    assert [s.n_tokens for s in sched] == [5]


def test_a_request_that_failed_is_gone_and_the_others_go_on() -> None:
    sched = scheduler()
    for name in ("good", "bad"):
        sched.add(request(name, 3, 2, embedding_bytes=10))
    plan = sched.plan()
    sched.commit(plan, outcome({("good", 0): 1}, ["bad"], plan))
    sched.check_integrity()
    assert "bad" not in sched and sched["good", 0].n_computed == 3 and sched.embeddings.reserved == 10
    assert shares(run(sched)) == [("good", 3, 4)]


def test_media_are_encoded_when_the_first_pad_is_reached() -> None:
    sched = scheduler(tokens=8)
    media = [medium(("a", i), *spans) for i, spans in enumerate([[(2, 4)], [(7, 4), (20, 2)], [(16, 3)]])]
    sched.add(request("a", 24, 4, media=media))
    plans = [run(sched) for _ in range(5)]  # of eight tokens, or embeddings in their place
    assert [[item.key[1] for item in plan.encodes] for plan in plans] == [[0], [], [1], [], [2]]
    assert [chunk for plan in plans for chunk in shares(plan)] == [
        ("a", 0, 4), ("a", 4, 7), ("a", 7, 9), ("a", 9, 16), ("a", 16, 21),
    ]  # fmt: skip


def test_the_youngest_makes_room_and_comes_back_first() -> None:
    sched = scheduler(n_blocks=4, tokens=16)
    for name in ("old", "young", "later"):
        sched.add(request(name, 4, 12))
    assert shares(run(sched)) == [("old", 0, 4), ("young", 0, 4)]  # the third would leave nothing to grow into
    for _ in range(3):
        run(sched)
    sequence = sched["young", 0]
    while not sched.preemptions:  # until both need a third block and none is free
        plan = run(sched)
    assert shares(plan) == [("old", 8, 9)]
    assert sequence.status is Status.WAITING and sequence.n_computed == 0 and sequence.block_table == []
    assert sequence.n_tokens == 9 and sched.preemptions == 1
    while "old" in sched:
        plan = run(sched)
        assert [chunk.request_id for chunk in plan.chunks] == ["old"]  # "later" does not overtake
    assert shares(run(sched)) == [("young", 0, 9)]


def test_a_preempted_sequence_keeps_its_embeddings_and_their_reservation() -> None:
    sched = scheduler(n_blocks=4)
    sched.add(request("old", 4, 12))
    sched.add(request("young", 4, 12, media=[medium(("young", 0), (1, 2), nbytes=60)]))
    assert run(sched).encodes
    while sched.preemptions == 0:
        run(sched)
    assert sched.embeddings.reserved == 60 and sched.embeddings.holds(("young", 0))
    while "old" in sched:
        run(sched)
    plan = sched.plan()
    assert shares(plan)[0][:2] == ("young", 0) and plan.encodes == ()
    sched.remove("young")
    assert sched.embeddings.reserved == 0 and sched.allocator.n_used == 0
    sched.add(request("new", 4, 1))
    assert run(sched).freed == (("young", 0),)


def test_all_answers_of_who_comes_while_embeddings_are_spoiled_have_others() -> None:
    sched = scheduler()
    for name, n in (("first", 1), ("second", 2)):
        picture = msgspec.structs.replace(medium((name, 0), (1, 2), nbytes=30), content=b"x")
        sched.add(request(name, 4, 12, media=[picture], n=n))
        plan = sched.plan()
        tokens = {key: (Token(id=1),) for chunk in plan.chunks for key in chunk.sampled_keys}
        sched.commit(plan, Outcome(tokens=tokens, filled=tuple(item.stored for item in plan.encodes)))
        sched.embeddings.spoil(sched["first", 0].media)
    assert [item.stored for item in plan.encodes] == [("second", 0)]
    assert [answer.media for answer in sched if answer.request_id == "second"] == [plan.encodes, plan.encodes]
    assert sched["first", 0].media[0].stored == b"x", "who had them has them"
    sched.check_integrity()


def test_embeddings_are_counted_at_admission_and_nobody_overtakes() -> None:
    sched = scheduler()
    for name, nbytes in (("a", 60), ("b", 60), ("c", 0)):
        sched.add(request(name, 4, 2, embedding_bytes=nbytes))
    assert shares(run(sched)) == [("a", 0, 4)]
    run(sched)
    assert shares(run(sched)) == [("b", 0, 4), ("c", 0, 4)]


def test_what_can_never_run_is_refused() -> None:
    sched = scheduler(n_blocks=4)
    assert sched.refuse(request("a", 8, 8)) is None
    assert "KV cache" in str(sched.refuse(request("a", 8, 9)))
    assert "embeddings" in str(sched.refuse(request("a", 4, 4, embedding_bytes=101)))


def test_every_decode_and_the_oldest_prefill_run_under_a_small_budget() -> None:
    sched = scheduler(seqs=8, tokens=3)
    for i in range(8):
        sched.add(request(str(i), 6, 3))
    steps = 0
    while len(sched):
        decoding = {s.request_id for s in sched if s.status is Status.RUNNING and s.n_tokens - s.n_computed == 1}
        plan = run(sched)
        assert plan.n_tokens <= 3 and decoding <= {chunk.request_id for chunk in plan.chunks}
        steps += 1
    assert steps < 40


def test_the_same_id_twice_is_an_error() -> None:
    sched = scheduler()
    sched.add(request("a", 4, 2))
    with pytest.raises(ValueError):
        sched.add(request("a", 4, 2))


def test_remove_in_every_state() -> None:
    sched = scheduler(n_blocks=4, tokens=6)
    assert sched.remove("nobody") is False
    for name in ("running", "waiting"):
        sched.add(request(name, 12, 3, embedding_bytes=10))
    run(sched)
    for name in ("waiting", "running"):
        assert sched.remove(name) is True
        sched.check_integrity()
    assert sched.allocator.n_used == 0 and sched.embeddings.reserved == 0


def test_integrity_sees_planted_faults() -> None:
    sched = scheduler()
    sched.add(request("a", 4, 4))
    run(sched)
    sched.embeddings.held.take(0, 1)
    with pytest.raises(BlockError):
        sched.check_integrity()
    sched.embeddings.held.give(0, 1)
    sched["a", 0].block_table.append(63)
    with pytest.raises(BlockError):
        sched.check_integrity()


Arrival = tuple[int, int, int, int, int]  # prompt, max_tokens, stops after, embedding bytes, arrives at step
ARRIVALS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 25), st.integers(0, 50), st.integers(0, 30)),
    min_size=1, max_size=12,
)  # fmt: skip


def _cut_short(sched: Scheduler) -> int:
    """Begun prompts with more to compute; none is counted where one waits for its encoder, which lets others by."""
    running = [s for s in sched if s.status is Status.RUNNING]
    return 0 if any(s.media for s in running) else sum(0 < s.n_computed < s.n_tokens - 1 for s in running)


@settings(max_examples=200)
@given(
    arrivals=ARRIVALS, aborts=st.dictionaries(st.integers(0, 11), st.integers(0, 60)), n_blocks=st.integers(15, 40),
    seqs=st.integers(1, 6), tokens=st.integers(1, 20),
)  # fmt: skip
def test_whatever_arrives_everybody_finishes_in_fair_order(
    arrivals: list[Arrival], aborts: dict[int, int], n_blocks: int, seqs: int, tokens: int
) -> None:
    sched = scheduler(n_blocks=n_blocks, seqs=seqs, tokens=tokens, embedding_bytes=50)
    pending = sorted(enumerate(arrivals), key=lambda pair: pair[1][4])
    order = {str(i): rank for rank, (i, _) in enumerate(pending)}
    drawn = dict.fromkeys(order, 0)
    ended: dict[str, str] = {}
    step = 0
    while pending or len(sched):
        while pending and pending[0][1][4] <= step:
            i, (n_prompt, max_tokens, _, nbytes, _) = pending.pop(0)
            sched.add(request(str(i), n_prompt, max_tokens, embedding_bytes=nbytes))
        for i, at in aborts.items():
            if at == step and sched.remove(str(i)):
                ended[str(i)] = "abort"
        plan = sched.plan()
        sched.check_integrity()
        assert bool(plan.chunks) == (len(sched) > 0)  # there is always progress
        assert plan.n_tokens <= tokens and sched.n_running <= seqs and sched.embeddings.reserved <= 50
        assert _cut_short(sched) <= 1
        running = [order[s.request_id] for s in sched if s.status is Status.RUNNING]
        waiting = [order[s.request_id] for s in sched if s.status is Status.WAITING]
        assert not running or not waiting or max(running) < min(waiting)
        if running:
            assert any(order[chunk.request_id] == min(running) for chunk in plan.chunks)  # the oldest always runs
        sampled = {}
        for chunk in plan.chunks:
            assert len(sched[chunk.key].block_table) * 4 >= chunk.stop and chunk.stop - chunk.start >= 1
            assert chunk.start == sched[chunk.key].n_computed
            if chunk.samples:
                drawn[chunk.request_id] += 1
                stops = drawn[chunk.request_id] == arrivals[int(chunk.request_id)][2]
                sampled[chunk.key] = STOP if stops else 1
        for event in sched.commit(plan, outcome(sampled, plan=plan)):
            if event.finish is not None:
                ended[event.request_id] = event.finish
        sched.check_integrity()
        step += 1
        assert step < 5000
    assert set(ended) == set(order) and sched.allocator.n_used == 0 and sched.embeddings.reserved == 0
    for name, how in ended.items():
        _, max_tokens, stops_after, _, _ = arrivals[int(name)]
        if how != "abort":
            assert drawn[name] == min(max_tokens, stops_after)
            assert how == ("stop" if stops_after <= max_tokens else "length")


def test_positions_of_generated_tokens_follow_the_delta() -> None:
    sequence = request("a", 4, 4)
    sequence.position_delta = -2
    assert sequence.positions_of(2, 6).tolist() == [[2, 3, 2, 3]] * 3
    assert sequence.positions_of(5, 6).tolist() == [[3]] * 3
    assert sequence.positions_of(0, 3).tolist() == [[0, 1, 2]] * 3
