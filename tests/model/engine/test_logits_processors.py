"""Bias, penalties and forbidden ids against transformers' processors, token by token, on the same logits."""

import inspect
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.utils import GenerationMixin

from model.engine.messages import SamplingParams
from model.engine.sampling.history import BadWords, History, TokenCounts
from model.engine.sampling.rows import Row
from model.engine.sampling.sampler import uniform
from tests.model.engine.sampling_rows import apply_rules, sample
from tests.tables import each_of

pytestmark = pytest.mark.network

VOCAB = 60
BANNED = (58, 59)


def row_of(sampling: SamplingParams, prompt: list[int], answer: list[int]) -> Row:
    history = History.of(sampling, np.array(prompt, np.int64))
    for token in answer:
        history.add(token)
    return Row(sampling=sampling, position=len(prompt) + len(answer), history=history)


def reference(logits: torch.Tensor, sampling: SamplingParams, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """transformers' scores [vocab] of one row; OpenAI's two penalties, which it lacks, by their published formula."""
    ids = torch.tensor([prompt + answer])
    scores = logits[None].clone()
    if sampling.logit_bias:
        scores = SequenceBiasLogitsProcessor([[[i], float(v)] for i, v in sampling.logit_bias])(ids, scores)
    if sampling.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(ids, scores)
    for token in set(answer):
        times = answer.count(token)
        scores[0, token] -= times * sampling.frequency_penalty + sampling.presence_penalty
    if sampling.bad_words:  # over the answer alone, as vLLM; transformers looks into the prompt too
        bad = NoBadWordsLogitsProcessor([list(word) for word in sampling.bad_words])
        scores = bad(torch.tensor([answer], dtype=torch.int64), scores)
    if sampling.allowed_token_ids:  # transformers has no processor for it: a mask
        outside = torch.ones(VOCAB, dtype=torch.bool)
        outside[list(sampling.allowed_token_ids)] = False
        scores = scores.masked_fill(outside, -math.inf)
    last = LogitsProcessorList([SuppressTokensLogitsProcessor(list(BANNED))])
    if sampling.min_tokens and sampling.stop_token_ids:
        stops = list(sampling.stop_token_ids)
        last.append(MinNewTokensLengthLogitsProcessor(len(prompt), sampling.min_tokens, stops))
    if sampling.temperature > 0:
        last.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            last.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            last.append(TopPLogitsWarper(sampling.top_p))
        if sampling.min_p:
            last.append(MinPLogitsWarper(sampling.min_p))
    found: torch.Tensor = last(ids, scores)[0]
    return found


def test_the_order_is_still_that_of_transformers() -> None:
    source = inspect.getsource(GenerationMixin._get_logits_processor)
    names = [
        "SequenceBiasLogitsProcessor(", "RepetitionPenaltyLogitsProcessor(", "NoBadWordsLogitsProcessor(",
        "MinNewTokensLengthLogitsProcessor(",
        "SuppressTokensLogitsProcessor(", "TemperatureLogitsWarper(", "TopKLogitsWarper(", "TopPLogitsWarper(",
        "MinPLogitsWarper(",
    ]  # fmt: skip
    places = [source.rindex(name) for name in names]
    assert places == sorted(places)


TOKENS = st.integers(0, VOCAB - 1)
SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=st.just(50),
    seed=st.integers(-(2**63), 2**63 - 1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 5, 40, 100]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7, 5.0]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.25, -1.0, 2.0]),
    min_tokens=st.sampled_from([0, 0, 3, 20]),
    stop_token_ids=st.lists(TOKENS, max_size=3).map(tuple),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from([-100.0, -1.5, 0.75, 100.0]), max_size=5).map(
        lambda found: tuple(found.items())
    ),
    allowed_token_ids=st.one_of(st.just(()), st.just(()), st.lists(TOKENS, min_size=1, unique=True).map(tuple)),
    bad_words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple), max_size=12).map(tuple),
)
REQUESTS = st.tuples(SAMPLINGS, st.lists(TOKENS, min_size=1, max_size=12), st.lists(TOKENS, max_size=12))


@settings(max_examples=150)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_a_batch_draws_what_transformers_would(
    requests: list[tuple[SamplingParams, list[int], list[int]]], seed: int
) -> None:
    """Whatever is asked for side by side: greedy is the processed maximum, a draw inverts what is left."""
    logits = torch.randn(len(requests), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    rows = [row_of(*asked) for asked in requests]
    tokens = sample(logits.clone(), rows, torch.tensor(BANNED))
    for i, (sampling, prompt, answer) in enumerate(requests):
        scores = reference(logits[i], sampling, prompt, answer)
        token = tokens[i]
        assert token is None or token.id not in BANNED
        if scores.max() == -math.inf:  # every id was forbidden, or every one that top_k left
            assert token is not None or rows[i].exhausted(BANNED)
            continue
        assert token is not None and not rows[i].exhausted(BANNED)
        if sampling.temperature == 0:
            top = scores.topk(2).values
            assert token.id == int(scores.argmax()) or float(top[0] - top[1]) < 1e-4
            continue
        cumulative = np.asarray(scores.double().softmax(-1)).cumsum()
        u = uniform(sampling.seed, rows[i].position)
        if np.abs(cumulative - u).min() > 1e-5:
            expected = int(np.searchsorted(cumulative, u, side="right"))
            assert token.id == expected or near_a_cut(logits[i], sampling, scores, prompt, answer)


def near_a_cut(
    logits: torch.Tensor, sampling: SamplingParams, scores: torch.Tensor, prompt: list[int], answer: list[int]
) -> bool:
    """Whether a hair's difference in top_p or min_p changes what transformers itself keeps."""
    kept = set()
    for shift in (-1e-5, 0.0, 1e-5):
        moved = msgspec.structs.replace(
            sampling,
            top_p=min(1.0, sampling.top_p + shift) if sampling.top_p < 1 else 1.0,
            min_p=min(1.0, max(0.0, sampling.min_p + shift)) if sampling.min_p else 0.0,
        )
        kept.add(tuple((reference(logits, moved, prompt, answer) > -math.inf).tolist()))
    return len(kept) > 1


def test_repetition_penalty_lowers_negative_logits_too() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0, 0.0]])
    sampling = SamplingParams(max_tokens=9, seed=0, repetition_penalty=2.0)
    apply_rules(logits, [row_of(sampling, [0, 1, 0], [4])])
    assert logits.tolist() == [[1.0, -4.0, 2.0, -2.0, 0.0]]  # once, however often an id occurred


def test_presence_and_frequency_count_the_answer_alone() -> None:
    logits = torch.zeros(1, 4)
    sampling = SamplingParams(max_tokens=9, seed=0, presence_penalty=0.5, frequency_penalty=0.25)
    apply_rules(logits, [row_of(sampling, [0, 0, 1], [1, 1, 1, 2])])
    assert logits.tolist() == [[0.0, -1.25, -0.75, 0.0]]


def test_a_row_without_wishes_is_left_alone() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    plain = SamplingParams(max_tokens=9, seed=0)
    strong = SamplingParams(max_tokens=9, seed=0, repetition_penalty=3.0, logit_bias=((5, 9.0),), min_tokens=2)
    rows = [row_of(plain, [1, 2], [3]), row_of(strong, [1, 2], [3]), Row(sampling=plain, position=3)]
    apply_rules(logits, rows)
    assert torch.equal(logits[[0, 2]], before[[0, 2]]) and not torch.equal(logits[1], before[1])
    assert rows[0].history is not None and rows[0].history.counts is None  # nothing is kept for it either


@each_of("temperature", [0.0, 1.0])
def test_bias_forces_and_forbids(temperature: float) -> None:
    logits = torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(1)) * 5
    for bias, allowed in ((100.0, {17}), (-100.0, set(range(VOCAB)) - {17})):
        boosted = logits.clone()
        boosted[:, 17] -= bias / 20  # against the wish, but less
        sampling = SamplingParams(max_tokens=9, seed=4, temperature=temperature, logit_bias=((17, bias),))
        rows = [Row(sampling=sampling, position=i, history=History.of(sampling, np.array([1]))) for i in range(40)]
        assert {token.id for token in sample(boosted, rows) if token} <= allowed


@each_of("temperature", [0.0, 1.0])
def test_a_placeholder_is_never_drawn_and_logprobs_stay_the_models_own(temperature: float) -> None:
    logits = torch.randn(20, VOCAB, generator=torch.Generator().manual_seed(2))
    logits[:, BANNED[0]] = 30.0  # the model would say nothing else
    sampling = SamplingParams(
        max_tokens=9, seed=4, temperature=temperature, logprobs=True, top_logprobs=1, logit_bias=((BANNED[1], 100.0),)
    )
    rows = [Row(sampling=sampling, position=i, history=History.of(sampling, np.array([1]))) for i in range(20)]
    raw = logits.double().log_softmax(-1)
    for i, token in enumerate(sample(logits, rows, torch.tensor(BANNED))):
        assert token is not None and token.id not in BANNED
        assert token.top[0][0] == BANNED[0] and token.logprob == pytest.approx(raw[i, token.id].item(), abs=1e-4)


def test_min_tokens_forbids_every_end_until_it_is_reached() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4], logits[0, 5] = 9.0, 8.0, 7.0
    sampling = SamplingParams(max_tokens=9, seed=0, temperature=0.0, min_tokens=2, stop_token_ids=(3, 4, 10**6))
    drawn = [sample(logits.clone(), [row_of(sampling, [1], [5] * n)])[0] for n in range(4)]
    assert [token and token.id for token in drawn] == [5, 5, 3, 3]


def test_an_end_that_is_no_id_forbids_nothing_of_a_neighbour() -> None:
    """A checkpoint that has no end may write -1."""
    logits = torch.zeros(3, VOCAB)
    early = SamplingParams(max_tokens=9, seed=0, min_tokens=2, stop_token_ids=(-1, -VOCAB, 3))
    plain = SamplingParams(max_tokens=9, seed=0)
    apply_rules(logits, [row_of(early, [1], []), row_of(plain, [1], []), row_of(early, [1], [])])
    assert logits.isneginf().nonzero().tolist() == [[0, 3], [2, 3]]


@given(
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6),
    answer=st.lists(st.integers(0, 2), max_size=12),
)
def test_a_bad_word_is_looked_for_in_the_answer(words: list[tuple[int, ...]], answer: list[int]) -> None:
    found = BadWords.of(words)
    for token in answer:
        found.add(token)
    completed = {word[-1] for word in words if tuple(answer[len(answer) - len(word) + 1 :]) == word[:-1]}
    short = {word for word in words if len(word) - 1 > len(answer)}
    assert set(found.forbidden) == completed - ({word[-1] for word in short} - completed)


def test_an_end_that_is_not_allowed_cannot_be_drawn() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3] = 50.0
    for allowed, expected in (((5, 6), {5, 6}), ((3, 5), {3})):
        sampling = SamplingParams(max_tokens=9, seed=0, stop_token_ids=(3,), allowed_token_ids=allowed)
        rows = [Row(sampling=sampling, position=i, history=History.of(sampling, np.array([1]))) for i in range(30)]
        drawn = sample(logits.repeat(30, 1), rows, torch.tensor(BANNED))
        assert {token.id for token in drawn if token} == expected


def test_a_row_is_exhausted_when_its_own_rules_leave_nothing() -> None:
    def row(answer: list[int], **rules: Any) -> Row:
        return row_of(SamplingParams(max_tokens=9, seed=0, **rules), [1], answer)

    assert row([], allowed_token_ids=BANNED).exhausted(BANNED)
    assert row([5], allowed_token_ids=(5,), bad_words=((5, 5),)).exhausted(BANNED)
    assert not row([], allowed_token_ids=(5,), bad_words=((5, 5),)).exhausted(BANNED)
    assert row([], allowed_token_ids=(3,), stop_token_ids=(3,), min_tokens=1).exhausted(BANNED)
    assert not row([4], allowed_token_ids=(3,), stop_token_ids=(3,), min_tokens=1).exhausted(BANNED)
    assert not row([]).exhausted(range(VOCAB)) and not row([], bad_words=((5,),)).exhausted(BANNED)


@given(prompt=st.lists(TOKENS, max_size=40), answer=st.lists(st.integers(0, 400), max_size=300))
def test_counts_are_those_of_a_recount(prompt: list[int], answer: list[int]) -> None:
    counts = TokenCounts.over(np.array(prompt, np.int64), 2.0, 0.5)
    for token in answer:
        counts.add(token)
    found = dict(zip(counts.ids.tolist(), counts.less.tolist(), strict=True))
    assert found == {token: 2.0 * answer.count(token) + 0.5 * (token in answer) for token in {*prompt, *answer}}


def test_a_token_costs_the_same_late_and_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rescan: the arrays are made again a logarithmic number of times, and nothing else grows with the answer."""
    made, real = [], np.concatenate

    def counted(parts: list[np.ndarray]) -> np.ndarray:
        made.append(1)
        return real(parts)

    monkeypatch.setattr(np, "concatenate", counted)
    counts = TokenCounts.over(np.array([0]), 1.0, 1.0)
    for token in range(100_000):
        counts.add(token % 4096)
    assert len(counts.ids) == 4096 and len(made) <= 14
