"""Two processes over the real torch_npu, and HCCL over the stub between them: they say what ring 0's two ranks say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from tests.npu.wheel.engine_rank import MODEL_LEN, RANKS, Job, RankSaid
from tests.npu.wheel.families import FAMILIES
from tests.npu.wheel.twins import BLOCK
from tests.ranks.processes import run_ranks

pytestmark = [pytest.mark.npu, pytest.mark.timeout(900)]

TESTED = ("qwen2_5_vl", "internvl")
FEW = ("text", "image")
LAUNCHED, REPLAYED, RING0, ALONE = "launched", "replayed", "ring 0", "ring 0, one rank"
SMALL, REFUSED, LATE, LATE_GRAPHS = "a smaller card", "a refused capture", "sums not awaited", "the same in a graph"
MIB = 3  # beside the weights: less than all that can be used takes
BLOCKS = 8 * MODEL_LEN // BLOCK  # all that can be used
ROUNDED = 0.03  # of the largest logit: what sums in two parts change in bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    ranks: tuple[RankSaid, RankSaid]
    logits: list[Tensor]  # of each step that draws


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], Said]:
    """By family and way."""
    root = tmp_path_factory.mktemp("r")
    fault = root / "fault"
    fault.write_text("aclmdlRICaptureBegin 207008 1\n")
    jobs: dict[tuple[str, str], Job] = {}
    for family in TESTED:
        path = str(FAMILIES[family].write(root / family))
        jobs[family, LAUNCHED] = Job(family=family, path=path)
        jobs[family, REPLAYED] = Job(family=family, path=path, graphs=True)
        jobs[family, RING0] = Job(family=family, path=path, device="cpu")
        jobs[family, ALONE] = Job(family=family, path=path, device="cpu", ranks=1, requests=("text",))
    few = Job(family=TESTED[0], path=jobs[TESTED[0], RING0].path, requests=FEW)
    more: dict[str, dict[str, Any]] = {
        RING0: {"device": "cpu"}, SMALL: {"free_mib": MIB},
        REFUSED: {"graphs": True, "fault": str(fault)},
        LATE: {"planted": True}, LATE_GRAPHS: {"planted": True, "graphs": True},
    }  # fmt: skip
    jobs |= {("", way): msgspec.structs.replace(few, **changes) for way, changes in more.items()}
    given = {"jobs": msgspec.to_builtins(list(jobs.values()))}
    found = msgspec.convert(run_ranks("tests.npu.wheel.engine_rank", RANKS, root / "r", given), list[list[RankSaid]])
    assert len(found) == RANKS and all(len(of_rank) == len(jobs) for of_rank in found)
    files = [root / "r" / f"{i}.pt" for i in range(len(jobs))]
    return {
        key: Said(ranks=(found[0][i], found[1][i]), logits=torch.load(files[i]) if files[i].exists() else [])
        for i, key in enumerate(jobs)
    }


def alike(one: Said, other: Said) -> bool:
    """Bit for bit."""
    return (
        one.ranks[0].events == other.ranks[0].events != {}
        and len(one.logits) == len(other.logits) > 0
        and all(torch.equal(mine, theirs) for mine, theirs in zip(one.logits, other.logits, strict=True))
    )


@pytest.mark.parametrize("way", [LAUNCHED, REPLAYED])
@pytest.mark.parametrize("family", TESTED)
def test_they_say_what_ring_0_says(said: Mapping[tuple[str, str], Said], family: str, way: str) -> None:
    assert alike(said[family, way], said[family, RING0])


@pytest.mark.parametrize("family", TESTED)
def test_ring_0_says_what_one_rank_says(said: Mapping[tuple[str, str], Said], family: str) -> None:
    """The first logits of all, but for sums that are rounded in two parts."""
    two, one = said[family, RING0].logits[0], said[family, ALONE].logits[0]
    assert 0 < float((two - one).abs().max()) <= ROUNDED * float(one.abs().max())


@pytest.mark.parametrize("way", [LAUNCHED, REPLAYED])
@pytest.mark.parametrize("family", TESTED)
def test_calls_of_a_step(said: Mapping[tuple[str, str], Said], family: str, way: str) -> None:
    """Two sums a layer, one of the embeddings, a gather: asked of HCCL in each step, or captured and replayed."""
    mine, theirs = said[family, way].ranks
    assert len(mine.steps) > 20
    for rank in (mine, theirs):
        sums = 2 * rank.layers + 1
        replays = 0
        for step in rank.steps[-len(mine.steps) :]:  # rank 1 counts the warm-up, too
            if not step.rows:  # a chunk that draws nothing: its last two sums and the gather are left out
                assert step.counts["HcclAllReduce"] == step.counts["computed_sum"] == sums - 2
                assert "HcclAllGather" not in step.counts
                continue
            gathers = step.counts["HcclAllGather"]
            assert gathers == step.counts["computed_gather"] == 1 and step.counts["computed_sum"] == sums
            assert step.counts.get("HcclAllReduce", 0) == (0 if "graph_replay" in step.counts else sums)
            replays += step.counts.get("graph_replay", 0)
        assert (replays > 0) == (way == REPLAYED)


def test_the_smallest_card_decides(said: Mapping[tuple[str, str], Said]) -> None:
    """Both measure the same steps, and have as many blocks as the one that has room for fewer."""
    mine, theirs = said["", SMALL].ranks
    assert 0 < mine.blocks == theirs.blocks < BLOCKS
    assert mine.bound.endswith("on the rank that has least") and theirs.bound.startswith("--kv-cache-share")
    assert alike(said["", SMALL], said["", RING0])


def test_a_capture_that_one_card_refuses_is_left_out_on_both(said: Mapping[tuple[str, str], Said]) -> None:
    """They make the same calls afterwards: every step is launched."""
    for rank in said["", REFUSED].ranks:
        assert not rank.error and len(rank.steps) > 5
        assert not any("graph_replay" in step.counts for step in rank.steps)
    assert alike(said["", REFUSED], said["", RING0])


def test_a_sum_that_is_not_awaited_is_seen(said: Mapping[tuple[str, str], Said]) -> None:
    """By its numbers where it is launched; a capture has a stream that never comes back, and ends the start."""
    assert said["", LATE].logits and not alike(said["", LATE], said["", RING0])
    assert all("107025" in rank.error for rank in said["", LATE_GRAPHS].ranks)
