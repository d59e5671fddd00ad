"""Log-probabilities of a prompt's own tokens: those that the same tokens get when they are generated."""

from typing import Any

import msgspec
import numpy as np
import pytest

from model.engine.messages import FromEngine, Generate, PromptScored, SamplingParams, StepDone, Token
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import GREEDY, EngineHarness, Parts, engine_at, picture
from tests.tables import each_of
from tokenization.placeholders import text_only

pytestmark = pytest.mark.network

TEXT: Parts = ["one two three four five"]
WISH = msgspec.structs.replace(GREEDY, logprobs=True, top_logprobs=3, max_tokens=12)


def scoring(name: str, ids: list[int], sampling: SamplingParams = WISH) -> Generate:
    return Generate(prepared=text_only(name, ids), sampling=sampling, scores_prompt=True)


def run(
    model: MultimodalLM, harness: EngineHarness, *requests: Generate, **sizes: Any
) -> tuple[dict[str, list[Token]], int]:
    """What the tokens of each prompt got, and how often a sequence was preempted."""
    engine = engine_at(model, harness.root, **sizes)
    for request in requests:
        harness.submit(engine, request)
    found: dict[str, list[Token]] = {}
    answered: set[str] = set()
    while not engine.idle:
        messages: list[FromEngine] = engine.step()
        for message in messages:
            if isinstance(message, PromptScored):
                assert message.request_id not in answered, "all come before the first answer"
                found.setdefault(message.request_id, []).extend(message.tokens)
            if isinstance(message, StepDone):
                answered.update(event.request_id for event in message.tokens)
        harness.book(messages)
        engine.check_integrity()
    preemptions = engine.stats.preemptions
    harness.assert_clean(engine)
    return found, preemptions


def generated(model: MultimodalLM, harness: EngineHarness) -> tuple[list[int], list[Token]]:
    """The ids of a prompt, and the tokens that follow it."""
    generate = harness.prepare("source", TEXT, WISH)
    engine = engine_at(model, harness.root, tokens=2048)
    harness.submit(engine, generate)
    harness.run(engine)
    return generate.prepared.input_ids.tolist(), [event.token for event in harness.events["source"]]


def assert_close(found: list[Token], expected: list[Token]) -> None:
    assert [token.id for token in found] == [token.id for token in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        np.testing.assert_allclose([p for _, p in ours.top], [p for _, p in theirs.top], atol=1e-4)


@each_of("tokens", [2048, 5, 1])
def test_a_prompt_gets_what_its_tokens_got_when_they_were_drawn(
    model: MultimodalLM, harness: EngineHarness, tokens: int
) -> None:
    ids, drawn = generated(model, harness)
    whole = [*ids, *(token.id for token in drawn)]
    found, _ = run(model, harness, scoring("a", whole), tokens=tokens, seqs=min(tokens, 8))
    assert [token.id for token in found["a"]] == whole[1:]
    assert_close(found["a"][len(ids) - 1 :], drawn)


def test_each_prompt_is_scored_once_beside_others_and_after_a_preemption(
    model: MultimodalLM, harness: EngineHarness
) -> None:
    ids, drawn = generated(model, harness)
    whole = [*ids, *(token.id for token in drawn)]
    alone, _ = run(model, harness, scoring("alone", whole), tokens=2048)
    long = msgspec.structs.replace(WISH, max_tokens=40, n=2)
    requests = [scoring(name, whole, long) for name in ("a", "b", "c")]
    plain = harness.prepare("with-a-picture", [picture(60, 70, 2), "look"], WISH)
    found, preemptions = run(
        model, harness, requests[0], plain, *requests[1:], tokens=16, kv_tokens=208, block_size=4, max_model_len=200
    )
    assert preemptions > 0
    assert set(found) == {"a", "b", "c"}
    for name in found:
        assert_close(found[name], alone["alone"])


def test_nothing_is_scored_that_nobody_asked_for(model: MultimodalLM, harness: EngineHarness) -> None:
    found, _ = run(model, harness, harness.prepare("a", TEXT, WISH), scoring("b", [5]))
    assert found == {}, "a prompt of one token predicts nothing of itself"
