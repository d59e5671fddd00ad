"""Embeddings that one step makes: how far prompts with media come, who gets what they leave; nobody starves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.engine.kv_blocks import BlockAllocator
from model.engine.messages import SamplingParams
from model.engine.plan import Plan
from model.engine.scheduler import Scheduler
from model.engine.scheduling.step_budget import Limits
from model.engine.sequence import Sequence, Status
from model.net.multimodal import MultimodalLM
from tests.model.engine.bookkeeping import medium, request, run
from tests.model.engine.engine_harness import GREEDY, EngineHarness, Parts, engine_at, picture
from tests.model.engine.test_scheduler import shares

pytestmark = pytest.mark.network


def scheduler(tokens: int = 32, embeddings: int = 10, seqs: int = 8, n_blocks: int = 256) -> Scheduler:
    limits = Limits(max_seqs=seqs, max_batched_tokens=tokens, embedding_bytes=1 << 20, max_encoder_tokens=embeddings)
    return Scheduler(BlockAllocator(n_blocks, 4), limits)


def pictures(name: str, *spans: tuple[int, int], text: int = 4, tokens: int = 3) -> Sequence:
    """A prompt with a picture in each span, and so much text behind the last one."""
    n_prompt = max(start + length for start, length in spans) + text
    return request(name, n_prompt, tokens, media=[medium((name, i), span) for i, span in enumerate(spans)])


def encoded(plan: Plan) -> list[tuple[str, int]]:
    return [item.key for item in plan.encodes]


def test_a_prompt_stops_before_a_medium_that_finds_no_room() -> None:
    sched = scheduler()
    sched.add(pictures("a", (1, 6), (8, 4), (14, 5), (20, 7)))
    plans = [run(sched) for _ in range(3)]
    assert [encoded(plan) for plan in plans] == [[("a", 0), ("a", 1)], [("a", 2)], [("a", 3)]]
    assert [shares(plan) for plan in plans] == [[("a", 0, 14)], [("a", 14, 20)], [("a", 20, 31)]]


def test_a_medium_beyond_the_budget_has_a_step_of_its_own() -> None:
    sched = scheduler()
    sched.add(pictures("a", (0, 3), (4, 24), (28, 2)))
    assert [encoded(run(sched)) for _ in range(3)] == [[("a", 0)], [("a", 1)], [("a", 2)]]


def test_what_a_prompt_leaves_goes_to_whoever_is_next() -> None:
    """Also where it comes no further at all, and to those that wait."""
    sched = scheduler(tokens=40)
    sched.add(pictures("first", (2, 9), (12, 9)))
    sched.add(pictures("second", (0, 9)))
    sched.add(request("text", 6, 3))
    plans = [run(sched) for _ in range(3)]
    assert shares(plans[0]) == [("first", 0, 12), ("text", 0, 6)] and encoded(plans[0]) == [("first", 0)]
    assert shares(plans[1]) == [("text", 6, 7), ("first", 12, 25)] and encoded(plans[1]) == [("first", 1)]
    assert shares(plans[2]) == [("first", 25, 26), ("text", 7, 8), ("second", 0, 13)]
    assert encoded(plans[2]) == [("second", 0)]


def test_a_medium_of_many_spans_is_whole_before_its_first_one() -> None:
    """Sounds and frames of a video that alternate."""
    sched = scheduler(embeddings=8)
    media = [medium(("a", 0), (2, 2), (8, 2), (14, 2)), medium(("a", 1), (5, 2), (11, 2))]
    sched.add(request("a", 20, 2, media=media))
    assert [shares(run(sched)) for _ in range(2)] == [[("a", 0, 5)], [("a", 5, 20)]]


def test_every_decode_has_its_token_while_prompts_wait_for_encoders() -> None:
    sched = scheduler(tokens=6, embeddings=2, seqs=6)
    sched.add(pictures("long", *[(5 * i, 3) for i in range(6)], text=60))
    for i in range(4):
        sched.add(request(f"text{i}", 4, 30))
    beside = 0
    while "long" in sched:
        decoding = {s.request_id for s in sched if s.status is Status.RUNNING and s.n_computed >= s.n_prompt}
        computed = {chunk.request_id for chunk in run(sched).chunks}
        assert decoding <= computed and "long" in computed
        beside += len(decoding - {"long"}) > 0
    assert beside > 10


Ask = tuple[int, list[tuple[int, int]], int, int, int]  # text in front, pictures (text before, pads), tokens, n, step
ASKS = st.lists(
    st.tuples(
        st.integers(1, 8), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 24)), max_size=4), st.integers(1, 8),
        st.integers(1, 3), st.integers(0, 12),
    ),
    min_size=1, max_size=9,
)  # fmt: skip


@settings(max_examples=150)
@given(
    asks=ASKS, tokens=st.integers(1, 40), embeddings=st.integers(1, 30), seqs=st.integers(1, 8),
    spare=st.integers(0, 20), leaves=st.dictionaries(st.integers(0, 8), st.integers(0, 30), max_size=3),
)  # fmt: skip
def test_whatever_arrives_nothing_starves(
    asks: list[Ask], tokens: int, embeddings: int, seqs: int, spare: int, leaves: dict[int, int]
) -> None:
    """Each step keeps to both budgets, encodes each picture once before its pads, and brings the oldest further."""
    found = []
    for i, (front, items, most, n, _) in enumerate(asks):
        at, spans = front, []
        for text, pads in items:
            spans.append((at + text, pads))
            at += text + pads
        media = [medium((str(i), j), span) for j, span in enumerate(spans)]
        sequence = request(str(i), at + 1, most, media=media)
        sequence.sampling = SamplingParams(max_tokens=most, seed=0, n=n)
        found.append(sequence)
    n_blocks = max(-(-s.limit // 4) for s in found) + spare
    sched = scheduler(tokens, embeddings, seqs, n_blocks)
    pending = sorted(range(len(asks)), key=lambda i: asks[i][4])
    made: set[tuple[str, int]] = set()
    step = 0
    while pending or len(sched):
        while pending and asks[pending[0]][4] <= step:
            sched.add(found[pending.pop(0)])
        for i, at in leaves.items():
            if at == step:
                sched.remove(str(i))
        before = {s.key: s for s in sched}
        oldest = next(iter(before), None)
        plan = run(sched)
        assert bool(plan.chunks) == bool(before) and plan.n_tokens <= tokens
        sizes = [item.n_tokens for item in plan.encodes]
        assert sum(sizes) <= embeddings or len(sizes) == 1
        if plan.n_tokens + sum(sizes) > tokens:  # one that is larger than what is left, and a token of its prompt
            starts = {chunk.request_id: chunk.start for chunk in plan.chunks}
            assert [starts[item.key[0]] for item in plan.encodes] == [item.first for item in plan.encodes[:1]]
        assert not made & {item.key for item in plan.encodes}
        made |= {item.key for item in plan.encodes}
        for chunk in plan.chunks:
            reached = [item for item in before[chunk.key].media if item.first < chunk.stop]
            assert {item.key for item in reached} <= made
        if oldest is not None:
            assert oldest in {key for chunk in plan.chunks for key in (chunk.key, *chunk.sampled_keys)}
        step += 1
        assert step < 4000
    assert sched.allocator.n_used == 0 and sched.embeddings.reserved == 0


def test_the_answers_are_those_of_a_step_that_encodes_all(model: MultimodalLM, harness: EngineHarness) -> None:
    """A batch of other shapes, and the same tokens; each step of the engine keeps to the budget."""
    asked: dict[str, Parts] = {
        "a": [picture(60, 70, 2), "and", picture(90, 60, 3), "and", picture(100, 120, 4), "describe"],
        "b": [picture(70, 70, 5), picture(50, 60, 6), "which of them?"],
        "c": ["one two three"],
    }
    tokens = {}
    for budget in (10_000, 12, 1):
        engine = engine_at(model, harness.root, tokens=256, encoder_tokens=budget)
        for name, parts in asked.items():
            harness.submit(engine, harness.prepare(f"{name}-{budget}", parts, GREEDY))
        encodes = []
        while not engine.idle:
            messages = engine.step()
            encodes.append(sum("encode" in getattr(message, "seconds", ()) for message in messages))
            harness.book(messages)
            engine.check_integrity()
        harness.assert_clean(engine)
        tokens[budget] = {name: harness.tokens(f"{name}-{budget}") for name in asked}
        assert sum(encodes) == {10_000: 1, 12: sum(encodes), 1: 5}[budget]
    assert tokens[12] == tokens[1] == tokens[10_000]
