"""What is drawn: against transformers' own processors, and the same whatever else is in the batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from model.engine.messages import SamplingParams
from model.engine.sampling import rows as gathered
from model.engine.sampling.rows import Row
from model.engine.sampling.sampler import uniform
from tests.model.engine.sampling_rows import sample
from tests.tables import each_of

pytestmark = pytest.mark.network

VOCAB = 3000


def params(**changes: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 1, "seed": 3, **changes})  # type: ignore[arg-type]


def rows_of(logits: torch.Tensor, sampling: SamplingParams) -> list[Row]:
    return [Row(sampling=sampling, position=i) for i in range(len(logits))]


def ids_of(logits: torch.Tensor, rows: list[Row]) -> list[int]:
    return [token.id for token in sample(logits, rows) if token is not None]


def reference(logits: torch.Tensor, sampling: SamplingParams) -> np.ndarray:
    """transformers' probabilities, float64 [S, vocab]."""
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return np.asarray(scores.double().softmax(-1))


SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.5, "top_k": 20},
    {"temperature": 1.0, "top_k": VOCAB + 5},
    {"temperature": 0.7, "top_p": 0.9},  # within the first thousand
    {"temperature": 3.0, "top_p": 0.95},  # not within the first thousand: the whole row is sorted
    {"temperature": 1.0, "top_p": 0.001},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.8},
    {"temperature": 2.0, "top_k": 2000, "top_p": 0.99},
]


@each_of("changes", SETTINGS, ids=str)
def test_draws_invert_the_distribution_of_transformers(changes: dict[str, float]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(200, VOCAB) * 3
    sampling = params(**changes)
    probabilities = reference(logits, sampling)
    cumulative = probabilities.cumsum(-1)
    compared = 0
    for i, token in enumerate(ids_of(logits, rows_of(logits, sampling))):
        u = uniform(3, i)
        assert probabilities[i, token] > 0  # a token that the reference removed is never drawn
        if np.abs(cumulative[i] - u).min() > 1e-5:
            assert token == np.searchsorted(cumulative[i], u, side="right")
            compared += 1
    assert compared > 150


def test_greedy_is_the_largest() -> None:
    torch.manual_seed(1)
    logits = torch.randn(20, VOCAB)
    assert ids_of(logits, rows_of(logits, params(temperature=0))) == logits.argmax(-1).tolist()


def test_a_mixed_batch_draws_what_each_row_draws_alone() -> None:
    torch.manual_seed(2)
    kinds = [*SETTINGS, {"temperature": 0.0}, {"temperature": 0.0, "logprobs": True, "top_logprobs": 4}]
    logits = (torch.randn(len(kinds) * 4, VOCAB) * 3).bfloat16().float()  # bfloat16 has many equal values
    rows = [Row(sampling=params(seed=i, **kinds[i % len(kinds)]), position=7 * i) for i in range(len(logits))]
    together = sample(logits, rows)
    for i, row in enumerate(rows):
        alone = sample(logits[i : i + 1].clone(), [row])[0]
        assert alone is not None and alone == together[i]
    backwards = sample(logits.flip(0), rows[::-1])[::-1]
    assert [token and token.id for token in backwards] == [token and token.id for token in together]


def test_a_device_that_is_not_read_back_draws_the_same() -> None:
    torch.manual_seed(7)
    logits = (torch.randn(len(SETTINGS) * 8, VOCAB) * 3).bfloat16().float()
    rows = [Row(sampling=params(seed=i, **SETTINGS[i % len(SETTINGS)]), position=i) for i in range(len(logits))]
    assert sample(logits.clone(), rows, behind=True) == sample(logits, rows)


def test_equal_logits_at_the_cut_are_kept_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]]).repeat(400, 1)
    drawn = set(ids_of(logits, rows_of(logits, params(temperature=1.0, top_k=2))))
    assert drawn == {0, 1, 2, 3}
    drawn = set(ids_of(logits, rows_of(logits, params(temperature=1.0, top_p=0.6))))
    assert drawn == {0, 1, 2, 3}


def test_logprobs_are_those_of_the_raw_logits() -> None:
    torch.manual_seed(3)
    logits = torch.randn(3, VOCAB)
    wanted = logits.double().log_softmax(-1)
    rows = [
        Row(sampling=params(temperature=0.5, logprobs=True, top_logprobs=5), position=1),
        Row(sampling=params(temperature=0.5), position=1),
        Row(sampling=params(temperature=0.0, logprobs=True), position=1),
    ]
    first, second, third = sample(logits, rows)
    assert first is not None and second is not None and third is not None
    assert first.logprob == pytest.approx(wanted[0, first.id].item(), abs=1e-5)
    values, ids = wanted[0].topk(5)
    assert [i for i, _ in first.top] == ids.tolist()
    assert [value for _, value in first.top] == pytest.approx(values.tolist(), abs=1e-5)
    assert second.logprob is None and second.top == ()
    assert third.logprob == pytest.approx(wanted[2].max().item(), abs=1e-5) and third.top == ()


def test_a_row_that_is_not_finite_is_reported_and_its_neighbours_are_drawn() -> None:
    logits = torch.randn(4, VOCAB)
    logits[1, 5] = math.nan
    logits[2] = math.inf
    for temperature in (0.0, 1.0):
        tokens = sample(logits, rows_of(logits, params(temperature=temperature, top_k=5, logprobs=True)))
        assert [token is None for token in tokens] == [False, True, True, False]


@each_of("temperature", [1e-30, 1e-6, 1e6])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    torch.manual_seed(4)
    logits = torch.randn(10, VOCAB) * 50
    ids = ids_of(logits, rows_of(logits, params(temperature=temperature, top_p=0.9)))
    assert len(ids) == 10
    if temperature < 1:
        assert ids == logits.argmax(-1).tolist()


def test_the_number_depends_on_seed_and_position_and_is_evenly_spread() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    assert len({uniform(seed, position) for seed in range(-5, 5) for position in range(10)}) == 100
    numbers = np.array([uniform(-(2**63), position) for position in range(4000)])
    assert 0 <= numbers.min() and numbers.max() < 1
    counts = np.histogram(numbers, 16, (0, 1))[0]
    assert ((counts - 250) ** 2 / 250).sum() < 40  # chi square with 15 degrees of freedom
    assert all(float(np.float32(u)) == u for u in numbers)


def test_the_ends_of_the_staircase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers on a step's very edge never draw a token that was cut."""
    logits = torch.tensor([[0.0, 5.0, 5.0, 0.0]])
    for u, token in ((0.0, 1), (1 - 2**-24, 2)):
        monkeypatch.setattr(gathered, "uniform", lambda seed, position, u=u: u)
        assert ids_of(logits, rows_of(logits, params(temperature=1.0, top_k=2))) == [token]


@each_of(
    "changes",
    [
        {"temperature": 1e39}, {"temperature": 1e308, "top_k": 3}, {"temperature": 1e308, "min_p": 1.0},
        {"temperature": 1.0, "top_p": 1e-46}, {"temperature": 1.0, "top_p": 1e-320},
        {"temperature": 5.0, "top_p": 1e-320, "top_k": 4, "min_p": 1.0}, {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1e308, "top_p": 1e-320}, {"temperature": 1.0, "min_p": 1e-320},
    ],
    ids=str,
)  # fmt: skip
def test_the_ends_of_the_ranges_never_draw_a_banned_id(changes: dict[str, float]) -> None:
    torch.manual_seed(5)
    logits = torch.randn(50, 500)
    likeliest = logits.index_fill(1, torch.tensor([7, 499]), -torch.inf).argmax(-1).tolist()
    tokens = sample(logits, rows_of(logits, params(**changes)), torch.tensor([7, 499]))
    ids = [token.id for token in tokens if token is not None]
    assert len(ids) == 50 and not {7, 499} & set(ids)
    if ("top_p" in changes or changes.get("min_p") == 1.0) and changes["temperature"] < 10:  # hotter, some are equal
        assert ids == likeliest
    elif changes == {"temperature": 1e39}:
        assert len(set(ids)) > 30, "as good as equally likely"


@given(
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e30]),
    temperature=st.floats(0, allow_infinity=False),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.sampled_from([0, 1, 2, 30, 59, 60, 2**31 - 1]),
    min_p=st.floats(0, 1),
    u=st.sampled_from([0.0, 0.5, 1 - 2**-24]),
)
@example(scale=1.0, temperature=1e39, top_p=1.0, top_k=0, min_p=0.0, u=0.5)
@example(scale=1.0, temperature=1.0, top_p=1e-46, top_k=0, min_p=0.0, u=0.5)
@example(scale=0.0, temperature=1.7e308, top_p=5e-324, top_k=1, min_p=1.0, u=1 - 2**-24)
def test_a_banned_id_is_never_drawn(
    scale: float, temperature: float, top_p: float, top_k: int, min_p: float, u: float
) -> None:
    banned = torch.tensor([0, 7, 58, 59])
    logits = torch.randn(8, 60, generator=torch.Generator().manual_seed(6)) * scale
    one = params(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    rows = [Row(sampling=one if i % 2 else params(temperature=1.0), position=i) for i in range(8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered, "uniform", lambda seed, position: u)
        tokens = sample(logits, rows, banned)
    assert all(token is not None and token.id not in (0, 7, 58, 59) for token in tokens)


@each_of("temperature", [0.0, 1.0])
def test_a_row_that_is_left_no_token_is_reported(temperature: float) -> None:
    logits = torch.randn(2, 10)
    sampling = params(temperature=temperature, logprobs=True, top_logprobs=2, top_p=0.5)
    assert sample(logits, rows_of(logits, sampling), torch.arange(10)) == [None, None]


def test_a_step_at_a_cut_token_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in parallel, as a device makes them, may round up at a token of probability 0."""
    serial = torch.Tensor.cumsum

    def parallel(self: torch.Tensor, dim: int) -> torch.Tensor:
        sums = serial(self, dim)
        sums[:, 2] += 0.25  # token 2 is banned
        return sums

    monkeypatch.setattr(torch.Tensor, "cumsum", parallel)
    monkeypatch.setattr(gathered, "uniform", lambda seed, position: 0.6)
    logits = torch.tensor([[0.0, 1.0, 0.0, 1.0]])
    tokens = sample(logits, rows_of(logits, params(temperature=1.0)), torch.tensor([2]))
    assert [token and token.id for token in tokens] == [1]


def test_nothing_to_sample() -> None:
    assert sample(torch.empty(0, VOCAB), []) == []
