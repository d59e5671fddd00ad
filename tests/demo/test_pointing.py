"""Numbers and pairs point at what an answer is about, too; and tools are offered, called and answered in batches."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from demo.checkpoint import train_tokenizer
from demo.prompts import OTHER
from demo.words import Words
from tests.demo.test_batches import draw
from tests.tables import each_of

pytestmark = pytest.mark.slow

SEEDS = range(4)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(Words.load().corpus(np.random.default_rng(0), 500), 400)


@each_of("seed", SEEDS)
def test_each_digit_points_at_where_it_is_printed(tokenizer: Tokenizer, seed: int) -> None:
    batch, examples = draw(tokenizer, "numbers", seed)
    assert batch.pointed is not None and batch.digits is not None
    length, n = batch.ids.shape[1], sum(len(e.answer) for e in examples if e.task == "number")
    assert len(batch.pointed.rows) == n
    found = 0
    for row, shares in zip(batch.pointed.rows, batch.pointed.shares, strict=True):
        tokens = batch.rows["image"].reshape(len(examples), -1)[row // length] % length
        (token,) = np.flatnonzero(shares[tokens] == 1)
        digit = int(tokenizer.decode([int(batch.labels.flat[row])]))
        found += batch.digits[row // length, token, digit] == 1
    assert found > 0.7 * n  # a one is slim, and its middle then may lie in a token of which it holds little


@each_of("seed", SEEDS)
def test_comparisons_point_at_both_pictures(tokenizer: Tokenizer, seed: int) -> None:
    batch, _ = draw(tokenizer, "pairs", seed)
    assert batch.pointed is not None
    length = batch.ids.shape[1]
    for row, shares in zip(batch.pointed.rows, batch.pointed.shares, strict=True):
        prompt = row // length
        looked = np.flatnonzero(shares)
        assert shares.sum() == pytest.approx(1)
        held = {kind: np.isin(prompt * length + looked, batch.rows[kind]).sum() for kind in ("image", OTHER)}
        assert sum(held.values()) == len(looked)
        if batch.tasks[prompt] in ("same_shape", "same_colour", "same_thing"):
            assert set(held.values()) == {1}
        if batch.tasks[prompt] == "which_has":
            first = tokenizer.decode([int(batch.labels.flat[row])]) in ("first", "第一张", "第", "f", "fi")
            assert len(looked) == 1 and (held["image"] == 1 or not first)


def test_tools_are_called_where_they_fit_and_their_results_said(tokenizer: Tokenizer) -> None:
    examples = [example for seed in range(12) for example in draw(tokenizer, "tools", seed)[1]]
    assert all(example.system.startswith("# Tools\n<tools>\n") for example in examples)
    called = [example for example in examples if example.task == "tool_call"]
    assert 0.25 < len(called) / len(examples) < 0.75
    for example in called:
        ((_, call),) = example.history
        assert call.startswith('<tool_call>\n{"name": "count_shapes", "arguments": {')
        assert example.parts == (f"<tool_response>\n{example.answer}\n</tool_response>",)
    assert not any("<tool_call>" in example.answer for example in examples)
