"""The engine over blocks that earlier requests left: the answers of an engine that keeps nothing, for less work."""

from typing import Literal

import msgspec
import numpy as np
import pytest

from model.engine.engine import Engine
from model.engine.messages import Generate, MediaRead, StepDone, Token
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import EngineHarness, engine_at, with_prepared
from tests.model.engine.prefix_harness import CHAT, SCORED, asked, assert_same, keyed, submit
from tests.tables import each_of
from tokenization.placeholders import text_only

pytestmark = pytest.mark.network


def test_a_prompt_that_was_seen_computes_one_block_and_encodes_nothing(
    model: MultimodalLM, harness: EngineHarness
) -> None:
    engine = engine_at(model, harness.root, keeps=False, tokens=2048)
    assert asked(harness, engine, "cold", CHAT) == 0
    generate = submit(harness, engine, "warm", CHAT)
    n = len(generate.prepared.input_ids)
    (message,) = engine.step()
    assert isinstance(message, StepDone), "no medium was read"
    assert message.begun == {"warm": (n - 1) // 16 * 16} and message.n_tokens == n - (n - 1) // 16 * 16
    assert "encode" not in message.seconds
    assert (message.stats.prefix_queries, message.stats.prefix_hits) == (2 * n, message.begun["warm"])
    harness.book([message])
    harness.run(engine)
    assert_same(harness.events["warm"], harness.events["cold"])
    assert "warm" not in harness.read, "its segment stays lent until it has ended"
    harness.assert_clean(engine)


def test_a_chat_that_goes_on_takes_over_its_answer_too(model: MultimodalLM, harness: EngineHarness) -> None:
    """Ids as they are: what was generated is part of the next prompt."""
    engine = engine_at(model, harness.root, keeps=False, tokens=2048)
    first = submit(harness, engine, "first", CHAT)
    harness.run(engine)
    answer = [event.token.id for event in harness.events["first"]]
    second = keyed(harness.prepare("second", CHAT, SCORED), CHAT)
    ids = np.concatenate([second.prepared.input_ids, answer, [30, 31, 32]])
    n, more = len(first.prepared.input_ids), len(answer) + 3
    behind = np.arange(n, n + more) + first.prepared.position_delta
    positions = np.concatenate([first.prepared.positions, np.broadcast_to(behind, (3, more))], axis=1).astype(np.int32)
    harness.submit(engine, with_prepared(second, input_ids=ids, positions=positions))
    assert n // 16 < (n + len(answer) - 1) // 16, "a block of the answer was filled"
    (message,) = engine.step()
    assert isinstance(message, StepDone) and message.begun == {"second": (n + len(answer) - 1) // 16 * 16}
    harness.book([message])
    harness.run(engine)


def test_a_medium_across_the_end_is_encoded(model: MultimodalLM, harness: EngineHarness) -> None:
    engine = engine_at(model, harness.root, keeps=False, tokens=2048, block_size=4)
    generate = submit(harness, engine, "long", CHAT)
    harness.run(engine)
    ((start, length),) = generate.prepared.media[0].spans
    inside = start + length // 2
    submit(harness, engine, "warm", CHAT)
    shared = inside // 4 * 4
    engine._scheduler.prefixes._keys["warm", 0]._most = shared // 4  # as if what is behind was evicted
    messages = engine.step()
    assert isinstance(messages[0], MediaRead) and isinstance(messages[1], StepDone)
    assert messages[1].begun == {"warm": shared} and start < shared
    harness.book(messages)
    harness.run(engine)
    assert_same(harness.events["warm"], harness.events["long"])


def test_whose_prompt_is_scored_takes_nothing_over_and_leaves_its_blocks(
    model: MultimodalLM, harness: EngineHarness
) -> None:
    engine = engine_at(model, harness.root, keeps=False, tokens=2048)
    assert asked(harness, engine, "scored", CHAT, scores_prompt=True) == 0
    assert asked(harness, engine, "again", CHAT, scores_prompt=True) == 0
    assert engine.stats.prefix_queries == 0
    assert asked(harness, engine, "other", CHAT) > 0
    assert_same(harness.events["other"], harness.events["scored"])


def test_off_keeps_nothing(model: MultimodalLM, harness: EngineHarness) -> None:
    engine = engine_at(model, harness.root, keeps=False, tokens=2048, prefix_cache="off")
    assert [asked(harness, engine, name, CHAT) for name in "ab"] == [0, 0]
    assert engine.stats.prefix_queries == engine.stats.prefix_hits == 0 and len(harness.read) == 2


def test_logits_that_are_not_finite_are_inherited_by_nobody(
    model: MultimodalLM, harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever made them so may stand in the blocks; the next one computes them anew."""
    engine = engine_at(model, harness.root, keeps=False, tokens=2048)
    asked(harness, engine, "good", CHAT)
    compute = MultimodalLM.compute_logits
    monkeypatch.setattr(MultimodalLM, "compute_logits", lambda self, hidden: compute(self, hidden) * float("nan"))
    submit(harness, engine, "bad", CHAT)
    harness.run(engine)
    assert harness.finished["bad"].reason == "failed"
    monkeypatch.undo()
    assert asked(harness, engine, "after", CHAT) == 0
    harness.assert_clean(engine)


def test_a_request_that_its_own_rules_exhaust_takes_nothing_from_the_cache(
    model: MultimodalLM, harness: EngineHarness
) -> None:
    """Else whoever knows how a prompt begins could have its blocks forgotten."""
    engine = engine_at(model, harness.root, keeps=False, tokens=2048)
    asked(harness, engine, "good", CHAT)
    placeholder = next(iter(model.placeholder_ids.values()))
    for name, rules in (
        ("likeliest", {"allowed_token_ids": (placeholder,)}),
        ("drawn", {"allowed_token_ids": (placeholder,), "temperature": 1.0}),
    ):
        submit(harness, engine, name, CHAT, msgspec.structs.replace(SCORED, **rules))
        harness.run(engine)
        assert harness.finished[name].code == "nothing_allowed"
    assert asked(harness, engine, "after", CHAT) > 0
    assert_same(harness.events["after"], harness.events["good"])
    harness.assert_clean(engine)


# ---- what must not be noticed


def test_a_prefix_that_is_gone_when_a_preempted_sequence_comes_back(
    model: MultimodalLM, harness: EngineHarness
) -> None:
    """Its picture was never read, because its blocks were there; now its segment is read after all."""
    engine = engine_at(model, harness.root, keeps=False, tokens=2048, kv_tokens=640, max_model_len=320)
    asked(harness, engine, "right", CHAT)
    submit(harness, engine, "a", CHAT)
    for _ in range(5):
        harness.book(engine.step())
    scheduler = engine._scheduler
    sequence = scheduler["a", 0]
    assert sequence.n_tokens > sequence.n_prompt and "a" not in harness.read
    scheduler._preempt(sequence)
    scheduler._line.take(sequence)  # others come first, and take all of the cache
    for i in range(4):
        asked_alone(harness, engine, f"flood-{i}")
    assert scheduler.allocator.find(scheduler.prefixes._keys["a", 0].up_to(16)) == [], "the prefix is gone"
    scheduler._line.put_back(sequence)
    harness.run(engine)
    assert len(harness.read["a"]) == 1 and harness.finished["a"].reason == "done"
    assert_same(harness.events["a"], harness.events["right"])
    harness.assert_clean(engine)


def asked_alone(harness: EngineHarness, engine: Engine, name: str) -> None:
    """A long prompt of its own ids, to its end, while another sequence is kept aside."""
    ids = np.random.default_rng(len(name) + ord(name[-1])).integers(1, 300, 310).tolist()
    generate = Generate(prepared=text_only(name, ids), sampling=msgspec.structs.replace(SCORED, max_tokens=2))
    harness.submit(engine, generate)
    while name not in harness.finished:
        harness.book(engine.step())


@each_of(("tokens", "prefix_cache"), [(7, "on"), (7, "off"), (2048, "on"), (2048, "off")])
def test_several_answers_compute_their_prompt_once(
    model: MultimodalLM, harness: EngineHarness, tokens: int, prefix_cache: Literal["on", "off"]
) -> None:
    """However many steps it takes; their first tokens come of one row."""
    engine = engine_at(model, harness.root, keeps=False, tokens=tokens, prefix_cache=prefix_cache)
    n = len(submit(harness, engine, "a", CHAT, msgspec.structs.replace(SCORED, n=4, max_tokens=2)).prepared.input_ids)
    computed = 0
    first: dict[int, Token] = {}
    while len(first) < 4:
        for message in engine.step():
            if isinstance(message, StepDone):
                computed += message.n_tokens
                first |= {event.index: event.token for event in message.tokens}
            harness.book([message])
    assert computed == n and len({token for token in first.values()}) == 1
    harness.run(engine)
    harness.assert_clean(engine)


@each_of(("tokens", "steps"), [(7, steps) for steps in range(0, 30, 4)] + [(64, steps) for steps in (0, 1, 3, 6, 10)])
def test_an_abort_at_every_stage(model: MultimodalLM, harness: EngineHarness, steps: int, tokens: int) -> None:
    """Of one that takes blocks over, and of one whose blocks others take: nothing is left, nobody else notices."""
    engine = engine_at(model, harness.root, keeps=False, tokens=tokens, block_size=4, kv_tokens=200, max_model_len=120)
    asked(harness, engine, "right", CHAT)
    for name in ("goes", "stays", "late"):
        submit(harness, engine, name, CHAT)
        harness.book(engine.step())
    for _ in range(steps):
        harness.book(engine.step())
    inside = "goes" not in harness.finished
    answer = engine.abort("goes")
    engine.check_integrity()
    if inside and answer is not None:
        harness.book([answer])
    harness.run(engine)
    for name in ("stays", "late"):
        assert_same(harness.events[name], harness.events["right"])
    harness.assert_clean(engine)
