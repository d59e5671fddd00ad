"""The seam to other ranks, between threads of one process that are ranks of one group."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from model.ops.collectives import ALONE, Ranks, join
from model.ops.load import load_ops
from tests.tables import each_of

pytestmark = pytest.mark.network

CPU = torch.device("cpu")
Said = TypeVar("Said")


def on_ranks(n: int, root: Path, run: Callable[[Ranks], Said]) -> list[Said]:
    """What each of n ranks gives, in their order."""

    def one(rank: int) -> Said:
        return run(join(rank, n, root / "meeting", CPU))

    with ThreadPoolExecutor(n) as threads:
        return list(threads.map(one, range(n)))


@each_of("n", [2, 3])
@each_of("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_and_a_gather(tmp_path: Path, n: int, dtype: torch.dtype) -> None:
    def run(ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor, Ranks]:
        with torch.inference_mode():
            x = torch.arange(6.0, dtype=dtype).view(3, 2) + 10 * ranks.rank
            return ranks.all_reduce(x.T.clone().T), ranks.all_gather(x.T), ranks

    parts = [torch.arange(6.0).view(3, 2) + 10 * rank for rank in range(n)]
    for rank, (total, joined, ranks) in enumerate(on_ranks(n, tmp_path, run)):
        assert torch.equal(total.float(), torch.stack(parts).sum(0)) and total.dtype == dtype
        assert torch.equal(joined.float(), torch.cat([part.T for part in parts], dim=1)) and joined.is_contiguous()
        assert (ranks.rank, ranks.n, dict(ranks.counts)) == (rank, n, {"all_reduce": 1, "all_gather": 1})


def test_it_listens_to_this_machine_alone(tmp_path: Path) -> None:
    """By the sockets that come with the group."""
    before = listening()
    found = on_ranks(2, tmp_path, lambda ranks: (ranks.all_reduce(torch.ones(1, 1)), listening())[1])
    assert all(new for new in (each - before for each in found))
    assert {address.split(":")[0] for each in found for address in each - before} == {"0100007F"}


def listening() -> set[str]:
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A"}


def test_a_rank_that_left_is_an_error(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> str:
        if ranks.rank == 1:
            return ""
        ranks.all_reduce(torch.ones(1, 1))
        try:
            while True:
                ranks.all_reduce(torch.ones(1, 1))
        except RuntimeError as error:
            return str(error)

    def leave_after_one(ranks: Ranks) -> str:
        if ranks.rank == 1:
            ranks.all_reduce(torch.ones(1, 1))
        return run(ranks)

    assert on_ranks(2, tmp_path, leave_after_one)[0]


def test_one_process_alone_calls_nobody() -> None:
    ops = load_ops(CPU, torch.float32)
    assert ops.ranks is ALONE and ALONE.n == 1
    with pytest.raises(AssertionError, match="has nobody to call"):
        Ranks(rank=1, n=2).all_reduce(torch.ones(1, 1))
