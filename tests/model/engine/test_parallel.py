"""FrameSampling through the whole engine: several answers, rules that look back, and what a seed promises."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch

from model.engine.engine import Engine
from model.engine.messages import Finished, SamplingParams
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import Alone, EngineHarness, Parts, engine_at, picture
from tests.parity.harness import load_ours
from tests.tables import each_of

pytestmark = pytest.mark.network

Singles = Callable[[Parts, SamplingParams, int], list[list[int]]]

ONE: Parts = ["look: ", picture(120, 90, 1), "what is in this image?"]
TEXT: Parts = ["one two three four five six"]
SEEDED = SamplingParams(max_tokens=14, temperature=1.2, top_p=0.95, seed=77)
RULES = msgspec.structs.replace(
    SEEDED, max_tokens=40, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, min_p=0.02,
    logit_bias=((5, 2.0), (9, -100.0)), min_tokens=10, stop_token_ids=(5,),
    bad_words=((7,), (8, 9)), allowed_token_ids=tuple(range(0, 300, 2)) + (5, 7, 9),
)  # fmt: skip


def answers(harness: EngineHarness, name: str, n: int) -> list[list[int]]:
    events = harness.events[name]
    return [[event.token.id for event in events if event.index == i] for i in range(n)]


@pytest.fixture
def singles(alone: Alone) -> Singles:
    return partial(singles_of, alone)


def singles_of(alone: Alone, parts: Parts, sampling: SamplingParams, n: int) -> list[list[int]]:
    """What n requests give that come alone, with one seed after the other."""
    return [alone(parts, msgspec.structs.replace(sampling, seed=sampling.seed + i, n=1)) for i in range(n)]


@dataclass(frozen=True)
class Engines:
    """Ways to be served: nothing is short, prompts are cut, answers preempt each other, places are few."""

    tokens: int = 2048
    block_size: int = 16
    kv_tokens: int = 4096
    seqs: int = 8

    def at(self, model: MultimodalLM, root: Path, longest: int) -> Engine:
        """`longest`: tokens of the longest answer with its prompt; a tight cache holds it and hardly more."""
        return engine_at(
            model, root, tokens=self.tokens, block_size=self.block_size, kv_tokens=self.kv_tokens or longest + 8,
            seqs=self.seqs, max_model_len=longest,
        )  # fmt: skip


WAYS = {
    "wide": Engines(), "cut": Engines(tokens=7, block_size=4), "tight": Engines(block_size=4, kv_tokens=0),
    "two places": Engines(seqs=2), "one token": Engines(tokens=1, block_size=4), "tight and cut": Engines(11, 4, 0),
}  # fmt: skip


@each_of("greedy", [True, False])
@each_of("way", WAYS)
def test_answers_are_those_of_single_requests(
    model: MultimodalLM, harness: EngineHarness, singles: Singles, way: str, greedy: bool
) -> None:
    sampling = msgspec.structs.replace(SEEDED, n=3, temperature=0.0 if greedy else 1.2)
    expected = {"a": singles(ONE, sampling, 3), "b": singles(TEXT, sampling, 3)}
    assert greedy or len({tuple(tokens) for tokens in expected["a"]}) == 3
    generates = [harness.prepare(name, parts, sampling) for name, parts in (("a", ONE), ("b", TEXT))]
    engine = WAYS[way].at(model, harness.root, max(len(generate.prepared.input_ids) for generate in generates) + 14)
    for generate in generates:
        harness.submit(engine, generate)
    harness.run(engine)
    assert {name: answers(harness, name, 3) for name in expected} == expected
    assert len(harness.read["a"]) == 1, "the medium is read once"
    assert (engine.stats.preemptions > 0) == way.startswith("tight")
    harness.assert_clean(engine)


def test_the_prompt_is_computed_once(model: MultimodalLM, harness: EngineHarness) -> None:
    engine = engine_at(model, harness.root, block_size=4, tokens=2048)
    generate = harness.prepare("a", ONE, msgspec.structs.replace(SEEDED, n=4, max_tokens=2))
    harness.submit(engine, generate)
    n = len(generate.prepared.input_ids)
    assert n % 4, "the prompt ends inside a block"
    seen = []
    real = engine._runner.run

    def spy(plan, sequences):  # type: ignore[no-untyped-def]
        seen.append(plan.n_tokens)
        return real(plan, sequences)

    engine._runner.run = spy  # type: ignore[method-assign]
    harness.book(engine.step())
    assert engine.stats.kv_blocks_used == n // 4 + 4
    harness.run(engine)
    assert seen == [n, 4] and len(harness.events["a"]) == 8


@each_of(("steps", "index"), [(steps, one) for steps in (0, 1, 3, 6, 8, 10, 13, 17, 21) for one in (None, steps % 3)])
def test_abort_in_every_state(
    model: MultimodalLM, harness: EngineHarness, singles: Singles, steps: int, index: int | None
) -> None:
    engine = engine_at(model, harness.root, tokens=9, block_size=4, kv_tokens=140, max_model_len=100)
    sampling = msgspec.structs.replace(SEEDED, n=3)
    harness.submit(engine, harness.prepare("stays", TEXT, sampling))
    harness.submit(engine, harness.prepare("goes", ONE, sampling))
    for _ in range(steps):
        harness.book(engine.step())
    answer = engine.abort("goes", index)
    engine.check_integrity()
    if answer is not None and "goes" not in harness.finished:
        assert index is None
        harness.book([answer])
    harness.run(engine)
    assert answers(harness, "stays", 3) == singles(TEXT, sampling, 3)
    whole = singles(ONE, sampling, 3)
    for i, tokens in enumerate(answers(harness, "goes", 3) if "goes" in harness.events else [[], [], []]):
        assert tokens == whole[i][: len(tokens)]
        assert len(tokens) == len(whole[i]) or index in (None, i)
    harness.assert_clean(engine)


def test_the_last_answer_that_is_aborted_ends_the_request(model: MultimodalLM, harness: EngineHarness) -> None:
    engine = engine_at(model, harness.root)
    harness.submit(engine, harness.prepare("a", ONE, msgspec.structs.replace(SEEDED, n=2)))
    harness.book(engine.step())
    assert engine.abort("a", 1) is None and engine.abort("a", 1) is None
    assert engine.stats.embedding_bytes > 0, "the other one may have to compute its prompt again"
    answer = engine.abort("a", 0)
    assert answer == Finished(request_id="a", reason="abort")
    harness.book([answer])
    harness.assert_clean(engine)


class Forced:
    """A model whose logits a test has the last word on."""

    def __init__(self, model: MultimodalLM, change: "dict[int, float]") -> None:
        self._model = model
        self._change = change

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._model.compute_logits(hidden)
        for token, value in self._change.items():
            logits[:, token] = value
        return logits


@each_of("temperature", [0.0, 1.0])
def test_no_placeholder_ever_comes_out(model: MultimodalLM, harness: EngineHarness, temperature: float) -> None:
    placeholders = {*model.placeholder_ids.values(), *model.media_token_ids}
    assert len(placeholders) >= 5
    forced = Forced(model, dict.fromkeys(placeholders, 50.0))
    engine = engine_at(forced, harness.root)  # type: ignore[arg-type]
    bias = tuple((token, 100.0) for token in sorted(placeholders))
    sampling = msgspec.structs.replace(SEEDED, temperature=temperature, logit_bias=bias, logprobs=True, top_logprobs=2)
    harness.submit(engine, harness.prepare("a", ONE, sampling))
    harness.run(engine)
    assert len(harness.tokens("a")) == 14 and not placeholders & set(harness.tokens("a"))
    for event in harness.events["a"]:
        assert {token for token, _ in event.token.top} <= placeholders, "the model's own numbers are told"
        assert event.token.logprob is not None and event.token.logprob < event.token.top[0][1]


def test_answers_fail_together_when_logits_are_not_finite(model: MultimodalLM, harness: EngineHarness) -> None:
    engine = engine_at(Forced(model, {3: float("nan")}), harness.root)  # type: ignore[arg-type]
    harness.submit(engine, harness.prepare("a", ONE, msgspec.structs.replace(SEEDED, n=3)))
    harness.run(engine)
    assert harness.finished["a"].reason == "failed" and harness.tokens("a") == []
    assert harness.finished["a"].message == "the logits gave no token for this request"
    harness.assert_clean(engine)


def test_a_request_that_allows_no_token_fails_alone(model: MultimodalLM, harness: EngineHarness) -> None:
    placeholder = next(iter(model.placeholder_ids.values()))
    engine = engine_at(model, harness.root)
    for name, rules in (
        ("a", {"allowed_token_ids": (placeholder,)}),
        ("b", {"allowed_token_ids": (65,), "bad_words": ((65, 65, 65),)}),
        ("c", {"allowed_token_ids": (65,)}),
    ):
        harness.submit(engine, harness.prepare(name, TEXT, msgspec.structs.replace(SEEDED, **rules)))
    harness.run(engine)
    ends = {name: (found.reason, found.code) for name, found in harness.finished.items()}
    assert ends == {"a": ("failed", "nothing_allowed"), "b": ("failed", "nothing_allowed"), "c": ("done", "")}
    assert [harness.tokens(name) for name in "abc"] == [[], [65, 65], [65] * 14]
    harness.assert_clean(engine)


@each_of("way", WAYS)
def test_rules_that_look_back_survive_whatever_happens(
    model: MultimodalLM, harness: EngineHarness, singles: Singles, way: str
) -> None:
    """Counts belong to the answer: not to its batch, its chunks, or the cache that it loses when it is preempted."""
    expected = singles(ONE, RULES, 2)
    generate = harness.prepare("a", ONE, msgspec.structs.replace(RULES, n=2))
    engine = WAYS[way].at(model, harness.root, len(generate.prepared.input_ids) + 40)
    harness.submit(engine, generate)
    for i in range(2):
        harness.submit(
            engine, harness.prepare(f"beside-{i}", TEXT, msgspec.structs.replace(RULES, seed=i, max_tokens=30))
        )
    harness.run(engine)
    assert answers(harness, "a", 2) == expected
    assert all(9 not in tokens and 5 not in tokens[:9] and len(tokens) > 9 for tokens in expected)
    assert (engine.stats.preemptions > 0) == way.startswith("tight")


def test_min_tokens_and_stop_tokens(model: MultimodalLM, harness: EngineHarness) -> None:
    engine = engine_at(model, harness.root)
    always = msgspec.structs.replace(SEEDED, logit_bias=((5, 100.0),), stop_token_ids=(5,), temperature=0.0)
    for least in (0, 1, 6):
        harness.submit(engine, harness.prepare(f"{least}", TEXT, msgspec.structs.replace(always, min_tokens=least)))
    harness.run(engine)
    for least in (0, 1, 6):
        tokens = harness.tokens(f"{least}")
        assert len(tokens) == least + 1 and tokens[-1] == 5 and 5 not in tokens[:-1]
        assert harness.events[f"{least}"][-1].finish == "stop"


@each_of("dtype", [torch.float32, torch.bfloat16], copied=("checkpoint",))
def test_alone_twice_is_exactly_the_same(checkpoint: Path, harness: EngineHarness, dtype: torch.dtype) -> None:
    model = load_ours(checkpoint, dtype)
    sampling = msgspec.structs.replace(SEEDED, n=2, logprobs=True, top_logprobs=3)
    for name in ("first", "second"):
        engine = engine_at(model, harness.root)
        harness.submit(engine, harness.prepare(name, ONE, sampling))
        harness.run(engine)
    events = [[(e.index, e.token, e.finish) for e in harness.events[name]] for name in ("first", "second")]
    assert events[0] == events[1] and len(events[0]) == 28
