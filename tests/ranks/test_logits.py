"""Several processes say what one says: every family's logits in mixed batches, and what planted mistakes do to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.npu.families import FAMILIES, mixed_logits, samples_of, write_family
from tests.parity.harness import OurRun, load_ours
from tests.ranks.planted import EXACT_SUMS, MISTAKES
from tests.ranks.processes import run_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900), pytest.mark.network]
BAR = 2e-5  # of the largest absolute logit of one rank
HURT = {"bias on every rank": "fuyu", "padded vocabulary": "qwen3_vl"}  # where a mistake shows; else Qwen2.5-VL
# Of each kind of decoder one: the others' are built and computed by the same lines.
ROUNDED = ("qwen_vl", "qwen2_5_vl", "qwen3_vl", "fuyu", "mistral3")
FOUR = "qwen2_5_vl"  # four heads over two of keys: each of these lies on two of four ranks


@dataclass(frozen=True, slots=True)
class Job:
    family: str
    dtype: str = "float32"
    planted: str = ""


JOBS = (
    *(Job(family) for family in FAMILIES),
    *(Job(family, "bfloat16", given) for family in ROUNDED for given in ("", EXACT_SUMS)),
    *(Job(HURT.get(mistake, "qwen2_5_vl"), planted=mistake) for mistake in MISTAKES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    logits: Tensor  # of rank 0
    ranks: Sequence[Mapping[str, Any]]


class Group:
    def __init__(self, n: int, root: Path, paths: Mapping[str, Path], jobs: Sequence[Job]) -> None:
        given = [
            {"family": job.family, "path": str(paths[job.family]), "dtype": job.dtype, "planted": job.planted}
            for job in jobs
        ]
        said = run_ranks("tests.ranks.logits_rank", n, root, {"jobs": given})
        logits = load_file(root / "logits.safetensors")
        self.said = {
            job: Said(logits=logits[str(i)], ranks=[of_rank[i] for of_rank in said]) for i, job in enumerate(jobs)
        }


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: write_family(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}


@pytest.fixture(scope="module")
def pair(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Group:
    return Group(2, tmp_path_factory.mktemp("pair"), paths, JOBS)


@pytest.fixture(scope="module")
def four(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Group:
    return Group(
        4, tmp_path_factory.mktemp("four"), paths, [Job(FOUR), Job(FOUR, "bfloat16"), Job(FOUR, "bfloat16", EXACT_SUMS)]
    )


@cache
def alone(path: Path, family: str, dtype: torch.dtype) -> Tensor:
    return mixed_logits(load_ours(path, dtype), samples_of(family, path))


@cache
def otherwise(path: Path, family: str, dtype: torch.dtype) -> Tensor:
    """Each prompt in one batch of its own."""
    model = load_ours(path, dtype)
    return torch.cat([OurRun(model).whole(sample) for sample in samples_of(family, path)])


def error(found: Tensor, path: Path, family: str) -> float:
    expected = alone(path, family, torch.float32)
    return float((found - expected).abs().max() / expected.abs().max()) if found.shape == expected.shape else 1.0


def check_bfloat16(group: Group, path: Path, family: str) -> None:
    """No further from one rank than its two shapes of batches are, where parts are added before they are rounded.

    As served each rank rounds its part. Then no further from float32 than one rank over either shape, by the mean and
    the worst of a thousand; there are some 40 of these, so that they scatter.
    """
    exact = alone(path, family, torch.float32)
    one, other = (f(path, family, torch.bfloat16) for f in (alone, otherwise))
    spread = (one - other).abs()
    from_one = (group.said[Job(family, "bfloat16", EXACT_SUMS)].logits - one).abs()
    assert from_one.mean() <= spread.mean() and from_one.max() <= spread.max()
    errors = [(logits - exact).abs() for logits in (group.said[Job(family, "bfloat16")].logits, one, other)]
    mine, *theirs = (float(error.mean()) for error in errors)
    assert 0 < mine <= 1.1 * max(theirs)
    mine, *theirs = (float(error.flatten().topk(error.numel() // 1000).values[-1]) for error in errors)
    assert mine <= 1.3 * max(theirs)


def test_two_ranks_say_what_one_says(pair: Group, paths: dict[str, Path]) -> None:
    errors = {family: error(pair.said[Job(family)].logits, paths[family], family) for family in FAMILIES}
    assert max(errors.values()) <= BAR, errors


@pytest.mark.parametrize("family", ROUNDED)
def test_two_ranks_in_bfloat16(pair: Group, paths: dict[str, Path], family: str) -> None:
    check_bfloat16(pair, paths[family], family)


def test_four_ranks_share_two_heads_of_keys(four: Group, paths: dict[str, Path]) -> None:
    said = four.said[Job(FOUR)]
    assert [of_rank["kv"]["kv_heads"] for of_rank in said.ranks] == [1] * 4
    assert error(said.logits, paths[FOUR], FOUR) <= BAR
    check_bfloat16(four, paths[FOUR], FOUR)


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_counted(pair: Group, paths: dict[str, Path], family: str) -> None:
    """Two sums a layer and one of the embeddings; one gather of logits a step: the same on each rank."""
    steps = max(7, len(samples_of(family, paths[family])[2].ids) - 5)  # of `mixed_logits`
    for of_rank in pair.said[Job(family)].ranks:
        sums = steps * (2 * of_rank["kv"]["layers"] + 1)
        assert of_rank["counts"] == {"all_reduce": sums, "all_gather": steps}
        assert of_rank["logits"][1] == of_rank["vocab"]


def test_mistakes_are_seen(pair: Group, paths: dict[str, Path]) -> None:
    errors = {}
    for mistake in MISTAKES:
        family = HURT.get(mistake, "qwen2_5_vl")
        errors[mistake] = error(pair.said[Job(family, planted=mistake)].logits, paths[family], family)
    assert min(errors.values()) > 10 * BAR, errors
