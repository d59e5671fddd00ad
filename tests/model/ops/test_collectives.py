"""The seam to other ranks, between threads of one process that are ranks of one group."""

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from model.ops import shared_memory_group
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


@each_of("n", [2, 3])
def test_what_is_larger_than_a_slot_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """And ranks that run ahead write over nothing that another one still reads."""
    monkeypatch.setattr(shared_memory_group, "SLOT_BYTES", 64)

    def run(ranks: Ranks) -> list[torch.Tensor]:
        found = []
        for i in range(40):
            x = torch.full((7, 11), float(10**ranks.rank * i))
            found += [ranks.all_gather(x), ranks.all_reduce(x)]
            if i % n == ranks.rank:
                time.sleep(0.001)
        return found

    wanted = []
    for i in range(40):
        each = [torch.full((7, 11), float(10**rank * i)) for rank in range(n)]
        wanted += [torch.cat(each, 1), torch.stack(each).sum(0)]
    for found in on_ranks(n, tmp_path, run):
        assert len(found) == len(wanted) and all(map(torch.equal, found, wanted))


def test_every_rank_has_the_same_sum_to_the_last_bit(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> torch.Tensor:
        return ranks.all_reduce(torch.randn(501, generator=torch.Generator().manual_seed(ranks.rank)).to(dtype))

    for dtype in (torch.float32, torch.bfloat16):
        for n in (2, 4):
            (tmp_path / f"{dtype}{n}").mkdir()
            first, *others = on_ranks(n, tmp_path / f"{dtype}{n}", run)
            assert all(torch.equal(first, other) for other in others)


def test_nobody_can_connect_to_it(tmp_path: Path) -> None:
    """gloo's listener accepted every connection of the machine's users, and lost their descriptors."""

    def sockets(_: Ranks) -> set[str]:
        return {link for fd in os.listdir("/proc/self/fd") if (link := linked(fd)).startswith("socket:")}

    def run(ranks: Ranks) -> set[str]:
        ranks.all_reduce(torch.ones(1, 1))
        return sockets(ranks)

    before = sockets(ALONE)
    assert on_ranks(2, tmp_path, run) == [before, before]
    assert (tmp_path / "meeting").stat().st_mode & 0o077 == 0


def linked(fd: str) -> str:
    with contextlib.suppress(OSError):  # that of the listing
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


def test_one_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory_group, "_PATIENCE_SECONDS", 0.1)
    with pytest.raises(RuntimeError, match="rank 1 did not come within"):
        join(0, 2, tmp_path / "meeting", CPU)


def test_a_rank_that_left_is_an_error(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> str:
        if ranks.rank == 1:
            return ""
        ranks.all_reduce(torch.ones(1, 1))
        with pytest.raises(RuntimeError) as caught:
            ranks.all_reduce(torch.ones(1, 1))
        return str(caught.value)

    def leave_after_one(ranks: Ranks) -> str:
        if ranks.rank == 1:
            ranks.all_reduce(torch.ones(1, 1))
        return run(ranks)

    assert on_ranks(2, tmp_path, leave_after_one)[0] == "rank 1 is gone"


def test_one_process_alone_calls_nobody() -> None:
    ops = load_ops(CPU, torch.float32)
    assert ops.ranks is ALONE and ALONE.n == 1
    with pytest.raises(AssertionError, match="has nobody to call"):
        Ranks(rank=1, n=2).all_reduce(torch.ones(1, 1))
