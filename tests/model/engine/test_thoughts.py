"""Answers that begin in a thought: it is drawn as without a form, and what begins behind it begins right behind it."""

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest

from model.engine.messages import Generate
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import Alone, EngineHarness
from tests.model.engine.forms_harness import DATE, DRAWN, PICTURE, TEXT, Held
from tests.tables import each_of
from tokenization.chat.grammar import CompiledGrammar

pytestmark = pytest.mark.network

Free = Callable[[Any, int], list[int]]
MARK = 6  # the token at this place of a free answer is made the mark that ends a thought


@pytest.fixture
def held(harness: EngineHarness, model: MultimodalLM) -> Held:
    return Held(harness, model)


@pytest.fixture
def free(held: Held, alone: Alone) -> Free:
    """What is drawn without a form; no end is, so that all other tokens are as likely as in a thought that owes one."""

    def free(parts: Any, seed: int) -> list[int]:
        tokens = alone(parts, msgspec.structs.replace(DRAWN, stop_token_ids=(held.end,), seed=seed, min_tokens=48))
        assert tokens[MARK] not in tokens[:MARK]
        return tokens

    return free


def thinking(
    held: Held, name: str, form: CompiledGrammar | None, parts: Any, mark: int, **changes: Any
) -> Generate:  # fmt: skip
    request = held.asked(name, form, parts, **changes)
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, thought_end=mark))


@each_of("prefix_cache", ["on", "off"])
def test_a_form_begins_behind_the_mark(held: Held, free: Free, prefix_cache: Literal["on", "off"]) -> None:
    """In chunks of 7, beside others, behind a picture: the thought is the free answer's."""
    form, thoughts = held.form("regex", DATE), {i: free(PICTURE if i % 2 else TEXT, i) for i in range(4)}
    requests = [
        thinking(held, f"t{i}", form, PICTURE if i % 2 else TEXT, thought[MARK], seed=i)
        for i, thought in thoughts.items()
    ]
    engine = held.engine(prefix_cache=prefix_cache, tokens=7)
    for i, found in enumerate(held.answers(engine, *requests)):
        assert found[: MARK + 1] == thoughts[i][: MARK + 1]
        assert re.fullmatch(DATE, held.text(found[MARK + 1 :])) and found[-1] == held.end


@each_of("prefix_cache", ["on", "off"])
def test_a_preempted_answer_knows_where_its_thought_ended(
    held: Held, free: Free, prefix_cache: Literal["on", "off"]
) -> None:
    form, thoughts = held.form("regex", "([a-z][0-9]){45}"), [free(TEXT, i) for i in range(3)]
    requests = [
        thinking(held, f"p{i}", form, TEXT, thought[MARK], seed=i, max_tokens=120) for i, thought in enumerate(thoughts)
    ]
    engine = held.engine(kv_tokens=192, max_model_len=160, prefix_cache=prefix_cache)
    for tokens, thought in zip(held.answers(engine, *requests), thoughts, strict=True):
        assert tokens[: MARK + 1] == thought[: MARK + 1]
        assert re.fullmatch("([a-z][0-9]){45}", held.text(tokens[MARK + 1 :]))
    assert engine.stats.preemptions > 0


def test_each_of_several_answers_has_its_own_thought(held: Held, free: Free) -> None:
    thought = free(TEXT, 3)
    request = thinking(held, "n", held.form("regex", DATE), TEXT, thought[MARK], seed=3, n=2)
    held.answers(held.engine(), request)
    events = held.harness.events["n"]
    for index in range(2):
        tokens = [event.token.id for event in events if event.index == index]
        if thought[MARK] in tokens:
            assert re.fullmatch(DATE, held.text(tokens[tokens.index(thought[MARK]) + 1 :]))
        else:  # the other seed's thought did not end
            assert len(tokens) == 48
    assert {event.index for event in events} == {0, 1}


def test_no_end_is_drawn_in_a_thought_that_owes_a_form(held: Held, free: Free) -> None:
    """Nor with min_tokens, which counts what is behind it; where nothing is owed the thought may end the answer."""
    mark = free(TEXT, 3)[MARK]
    pushed = {"logit_bias": ((held.end, 100.0),), "max_tokens": 9, "temperature": 0.0}
    empty = held.form("regex", "(ab)?")
    owed, open_, least, bare = held.answers(
        held.engine(),
        thinking(held, "owed", held.form("regex", DATE), TEXT, mark, **pushed),
        thinking(held, "open", empty, TEXT, mark, **pushed),
        thinking(held, "least", None, TEXT, mark, min_tokens=1, **pushed),
        thinking(held, "bare", None, TEXT, mark, **pushed),
    )
    assert held.end not in owed[:-1] and len(owed) > 1
    assert held.end not in least[: (least.index(mark) if mark in least else 9)]
    assert open_ == bare == [held.end]


def test_min_tokens_counts_what_is_behind_the_mark(held: Held, free: Free) -> None:
    mark = free(TEXT, 3)[MARK]
    ends = {"logit_bias": ((held.end, 100.0), (mark, 90.0)), "temperature": 0.0, "max_tokens": 20}
    for least in (1, 4):
        (found,) = held.answers(held.engine(), thinking(held, f"m{least}", None, TEXT, mark, min_tokens=least, **ends))
        assert found[0] == mark and found[-1] == held.end and len(found) == least + 2
