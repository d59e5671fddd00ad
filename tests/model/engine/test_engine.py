"""One engine, driven step by step: every end of a request, alone and beside neighbours whose tokens must stay right."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from model.engine.engine import Engine
from model.engine.messages import Generate, MediaRead, SamplingParams, StepDone
from model.forward_batch import ForwardBatch, KVCache
from model.net.multimodal import MultimodalLM
from shm import encode_shape_to_int64
from tests.model.engine.engine_harness import GREEDY, Alone, EngineHarness, Parts, engine_at, picture, with_prepared
from tests.tables import each_of

pytestmark = pytest.mark.network

ONE: Parts = ["look: ", picture(120, 90, 1), "what is in this image?"]
THREE: Parts = [picture(60, 70, 2), "and", picture(90, 60, 3), "and", picture(100, 120, 4), "describe"]
TEXT: Parts = ["one two three"]


def submit(harness: EngineHarness, engine: Engine, name: str, parts: Parts, sampling: SamplingParams = GREEDY) -> None:
    harness.submit(engine, harness.prepare(name, parts, sampling))


def test_messages_of_one_request_in_order(model: MultimodalLM, harness: EngineHarness) -> None:
    engine = engine_at(model, harness.root)
    generate = harness.prepare("a", ONE, msgspec.structs.replace(GREEDY, max_tokens=2))
    assert engine.submit(generate) is None and not engine.idle
    first, second = engine.step(), engine.step()
    read, done = first
    assert isinstance(read, MediaRead) and len(read.names) == 1 and read.request_id == "a"
    assert isinstance(done, StepDone) and [event.finish for event in done.tokens] == [None]
    assert set(done.seconds) == {"encode", "prefill", "sample"}
    assert done.begun == {"a": 0} and isinstance(second[0], StepDone) and not second[0].begun
    assert done.encoded == ("a",) and not second[0].encoded
    assert 0 < done.started < second[0].started
    assert done.stats.running == 1 and done.stats.kv_blocks_used > 0 and done.stats.embedding_bytes > 0
    assert isinstance(second[0], StepDone) and [event.finish for event in second[0].tokens] == ["length"]
    assert set(second[0].seconds) == {"decode", "sample"}
    assert second[0].stats.kv_blocks_used == 0 and second[0].stats.embedding_bytes == 0
    assert second[1].request_id == "a" and second[1].reason == "done"  # type: ignore[union-attr]
    assert engine.step() == [] and engine.progress is None
    harness.book([*first, *second])
    harness.assert_clean(engine)


def test_a_stop_token_is_reported_and_ends_the_request(
    model: MultimodalLM, harness: EngineHarness, alone: Alone
) -> None:
    tokens = alone(TEXT)
    engine = engine_at(model, harness.root)
    at = next(i for i, token in enumerate(tokens) if i > 2 and token not in tokens[:i])
    submit(harness, engine, "a", TEXT, msgspec.structs.replace(GREEDY, stop_token_ids=(tokens[at],)))
    harness.run(engine)
    assert harness.tokens("a") == tokens[: at + 1]
    assert harness.events["a"][-1].finish == "stop" and harness.finished["a"].reason == "done"
    harness.assert_clean(engine)


def test_max_model_len_ends_a_request_with_length(model: MultimodalLM, harness: EngineHarness) -> None:
    n = len(harness.prepare("a", TEXT).prepared.input_ids)
    engine = engine_at(model, harness.root, max_model_len=n + 3)
    submit(harness, engine, "a", TEXT)
    harness.run(engine)
    assert [event.finish for event in harness.events["a"]] == [None, None, "length"]


STATES = [(7, steps) for steps in range(0, 40, 4)] + [(64, steps) for steps in (0, 1, 2, 3, 5, 9, 15, 24)]


@each_of(("tokens", "steps"), STATES)
def test_abort_in_every_state(
    model: MultimodalLM, harness: EngineHarness, alone: Alone, tokens: int, steps: int
) -> None:
    """Waiting, in mid-prompt, inside an image, decoding, preempted: nothing is left and nobody else notices."""
    engine = engine_at(model, harness.root, tokens=tokens, block_size=4, kv_tokens=160, max_model_len=130)
    expected = {name: alone(parts) for name, parts in (("stays", ONE), ("late", TEXT))}
    submit(harness, engine, "stays", ONE)
    submit(harness, engine, "goes", THREE)
    submit(harness, engine, "late", TEXT)
    for _ in range(steps):
        harness.book(engine.step())
    inside = "goes" not in harness.finished
    answer = engine.abort("goes")
    assert answer is not None and answer.reason == "abort" and answer.request_id == "goes"
    engine.check_integrity()
    if inside:
        harness.book([answer])
    harness.run(engine)
    assert {name: harness.tokens(name) for name in expected} == expected
    harness.assert_clean(engine)


def test_abort_of_an_unknown_request_is_answered(model: MultimodalLM, harness: EngineHarness) -> None:
    engine = engine_at(model, harness.root)
    answer = engine.abort("nobody")
    assert answer is not None and answer.reason == "abort"


def delete_segment(harness: EngineHarness, generate: Generate) -> Generate:
    harness.drop("bad")
    return generate


def corrupt_word(harness: EngineHarness, generate: Generate) -> Generate:
    ids = generate.prepared.input_ids.copy()
    ids[np.flatnonzero(ids < 0)[0]] ^= 1 << 30
    return with_prepared(generate, input_ids=ids)


def other_shape(harness: EngineHarness, generate: Generate) -> Generate:
    """Word and grid agree with each other, but not with the segment's record."""
    item = generate.prepared.media[1]
    grid = (1, item.grid[1] + 2, item.grid[2])
    ids = generate.prepared.input_ids.copy()
    ids[item.spans[0][0] + 1] = encode_shape_to_int64((grid[1] * grid[2], 588))
    media = (generate.prepared.media[0], msgspec.structs.replace(item, grid=grid), *generate.prepared.media[2:])
    return with_prepared(generate, input_ids=ids, media=media)


def wrong_grid(harness: EngineHarness, generate: Generate) -> Generate:
    item = msgspec.structs.replace(generate.prepared.media[0], grid=(1, 2, 2))
    return with_prepared(generate, media=(item, *generate.prepared.media[1:]))


def odd_grid(harness: EngineHarness, generate: Generate) -> Generate:
    """As many patches, in a grid that the tower cannot merge."""
    item = generate.prepared.media[0]
    item = msgspec.structs.replace(item, grid=(1, 1, item.grid[1] * item.grid[2]))
    return with_prepared(generate, media=(item, *generate.prepared.media[1:]))


def shorter_span(harness: EngineHarness, generate: Generate) -> Generate:
    """The tower gives more rows than the item has pads."""
    ((start, length),) = generate.prepared.media[0].spans
    item = msgspec.structs.replace(generate.prepared.media[0], spans=((start, length - 1),))
    return with_prepared(generate, media=(item, *generate.prepared.media[1:]))


BROKEN: list[tuple[Callable[[EngineHarness, Generate], Generate], str]] = [
    (delete_segment, "media_unavailable"), (corrupt_word, "media_unavailable"), (other_shape, "media_unavailable"),
    (wrong_grid, "internal"), (odd_grid, "internal"), (shorter_span, "internal"),
]  # fmt: skip


@each_of("tokens", [7, 2048])
@each_of(("damage", "code"), BROKEN)
def test_one_broken_request_fails_alone(
    model: MultimodalLM,
    harness: EngineHarness,
    alone: Alone,
    damage: Callable[[EngineHarness, Generate], Generate],
    code: str,
    tokens: int,
) -> None:
    expected = {"before": alone(TEXT), "after": alone(ONE)}
    engine = engine_at(model, harness.root, tokens=tokens)
    submit(harness, engine, "before", TEXT)
    bad = harness.prepare("bad", THREE)
    harness.submit(engine, damage(harness, bad))
    submit(harness, engine, "after", ONE)
    harness.run(engine)
    failed = harness.finished["bad"]
    assert failed.reason == "failed" and failed.code == code and failed.message
    assert not any(name in failed.message for name in harness.lent["bad"]) and str(harness.root) not in failed.message
    assert harness.tokens("bad") == []
    assert {name: harness.tokens(name) for name in expected} == expected
    harness.assert_clean(engine)


def test_what_can_never_be_served_is_refused_at_once(model: MultimodalLM, harness: EngineHarness) -> None:
    engine = engine_at(model, harness.root, embedding_bytes=1000)
    submit(harness, engine, "a", ONE)
    assert engine.idle and harness.finished["a"].reason == "failed" and "embeddings" in harness.finished["a"].message
    harness.assert_clean(engine)


def test_as_many_media_tokens_as_it_says_are_taken(model: MultimodalLM, harness: EngineHarness) -> None:
    generate = harness.prepare("a", ONE)
    need = sum(length for _, length in generate.prepared.media[0].spans)
    row = model.hidden_size * 4
    tight, short = (engine_at(model, harness.root, embedding_bytes=need * row - less) for less in (0, 1))
    assert (tight.max_media_tokens, short.max_media_tokens) == (need, need - 1)
    assert short.submit(generate) is not None and tight.submit(generate) is None


def test_embeddings_of_all_requests_stay_inside_their_budget(
    model: MultimodalLM, harness: EngineHarness, alone: Alone
) -> None:
    one = sum(length for _, length in harness.prepare("x", ONE).prepared.media[0].spans) * model.hidden_size * 4
    harness.drop("x")
    expected = alone(ONE)
    engine = engine_at(model, harness.root, embedding_bytes=2 * one + 1)
    for i in range(5):
        submit(harness, engine, str(i), ONE)
    while not engine.idle:
        harness.book(engine.step())
        assert engine.stats.embedding_bytes <= 2 * one and engine.stats.running <= 2
    assert all(harness.tokens(str(i)) == expected for i in range(5))


def test_the_same_id_twice_does_not_disturb_the_first(
    model: MultimodalLM, harness: EngineHarness, alone: Alone
) -> None:
    engine = engine_at(model, harness.root)
    generate = harness.prepare("a", TEXT)
    assert engine.submit(generate) is None
    second = engine.submit(generate)
    assert second is not None and second.reason == "failed"
    harness.run(engine)
    assert harness.tokens("a") == alone(TEXT)


SEEDED = SamplingParams(max_tokens=24, temperature=1.2, top_k=40, top_p=0.95, seed=1234)


def test_a_seeded_draw_depends_on_nothing_else(model: MultimodalLM, harness: EngineHarness, alone: Alone) -> None:
    """Not on the batch, the chunks, the blocks, or preemption."""
    expected = alone(THREE, SEEDED)
    assert len(set(expected)) > 5 and expected != alone(THREE, msgspec.structs.replace(SEEDED, seed=5))
    # Tight: both texts and the prompt fit exactly, with one block to grow for each that runs.
    n_text, n_three = (len(harness.prepare("measured", parts).prepared.input_ids) for parts in (TEXT, THREE))
    harness.drop("measured")
    tight = 2 * -(-n_text // 4) - (-n_three // 4) + 2
    for name, tokens, block_size, blocks in (("wide", 2048, 16, 512), ("cut", 7, 4, 1024), ("tight", 2048, 4, tight)):
        engine = engine_at(
            model, harness.root, tokens=tokens, block_size=block_size, kv_tokens=blocks * block_size, max_model_len=140
        )
        for i in range(2):
            submit(harness, engine, f"{name}{i}", TEXT, msgspec.structs.replace(SEEDED, seed=i, top_k=0, max_tokens=40))
        submit(harness, engine, name, THREE, SEEDED)
        harness.run(engine)
        assert harness.tokens(name) == expected, name
        assert (engine.stats.preemptions > 0) == (name == "tight")


class Faulty:
    """A model whose forward pass a test can break."""

    def __init__(self, model: MultimodalLM, spoil: Callable[[ForwardBatch, torch.Tensor], torch.Tensor]) -> None:
        self._model = model
        self._spoil = spoil

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(self, batch: ForwardBatch, kv: KVCache) -> torch.Tensor:
        return self._spoil(batch, self._model.forward(batch, kv))


def test_logits_that_are_not_finite_fail_their_request_alone(
    model: MultimodalLM, harness: EngineHarness, alone: Alone
) -> None:
    expected = alone(TEXT)

    def spoil(batch: ForwardBatch, hidden: torch.Tensor) -> torch.Tensor:
        if len(hidden) == 2 and max(batch.kv_lens) > 55:
            hidden[1] = torch.nan
        return hidden

    engine = engine_at(Faulty(model, spoil), harness.root)  # type: ignore[arg-type]
    submit(harness, engine, "good", TEXT)
    submit(harness, engine, "bad", ONE)
    harness.run(engine)
    assert harness.tokens("good") == expected and harness.finished["good"].reason == "done"
    assert harness.finished["bad"].reason == "failed" and harness.finished["bad"].code == "internal"
    harness.assert_clean(engine)


def test_a_forward_pass_that_fails_ends_the_engine(model: MultimodalLM, harness: EngineHarness, tmp_path: Path) -> None:
    def spoil(batch: ForwardBatch, hidden: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the device is gone")

    engine = engine_at(Faulty(model, spoil), harness.root)  # type: ignore[arg-type]
    submit(harness, engine, "a", TEXT)
    with pytest.raises(RuntimeError, match="device"):
        engine.step()


def test_progress_is_visible_in_mid_step(model: MultimodalLM, harness: EngineHarness) -> None:
    seen = []

    def spoil(batch: ForwardBatch, logits: torch.Tensor) -> torch.Tensor:
        seen.append(engine.progress)
        return logits

    engine = engine_at(Faulty(model, spoil), harness.root, tokens=2048)  # type: ignore[arg-type]
    generate = harness.prepare("a", THREE, msgspec.structs.replace(GREEDY, max_tokens=2))
    harness.submit(engine, generate)
    harness.run(engine)
    patches = sum(item.grid[1] * item.grid[2] for item in generate.prepared.media)
    assert [(p.tokens, p.patches) for p in seen if p] == [(len(generate.prepared.input_ids), patches), (1, 0)]
    assert seen[0] is not None and replace(seen[0], tokens=0).started <= seen[1].started  # type: ignore[union-attr]
