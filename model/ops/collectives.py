"""The seam to other ranks: what a process that holds a part of a model asks of those that hold the rest."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from model.ops.shared_memory_group import SharedMemoryGroup

_PATIENCE = timedelta(minutes=10)  # of one call: a rank that hangs is found by its pulse long before


class Group(Protocol):
    """The ranks that have met. Tensors are contiguous; a call returns when all have made it."""

    def all_reduce(self, x: Tensor) -> None:
        """The sum over all ranks into x. Raises RuntimeError where a rank is gone."""

    def all_gather(self, x: Tensor) -> Tensor:
        """x of each rank -> [n, *x.shape]. Raises RuntimeError where a rank is gone."""


@dataclass(frozen=True, slots=True)
class HcclGroup:
    """Of NPUs, whose calls no host waits for."""

    n: int
    group: Any  # of torch.distributed

    def all_reduce(self, x: Tensor) -> None:
        self.group.allreduce([x]).wait()

    def all_gather(self, x: Tensor) -> Tensor:
        found = x.new_empty((self.n * x.shape[0], *x.shape[1:]))
        self.group._allgather_base(found, x).wait()
        return found.view(self.n, *x.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This rank among `n`. All ranks make the same calls in the same order; a call returns when all have made it."""

    rank: int = 0
    n: int = 1
    group: Group | None = None  # None: it is alone, or only shapes are wanted of it
    counts: Counter[str] = field(default_factory=Counter)  # calls by name

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks, bit for bit the same on each. Writes into x where it is contiguous.

        Raises RuntimeError where a rank is gone.
        """
        self.counts["all_reduce"] += 1
        x = x.contiguous()
        self._group.all_reduce(x)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """[rows, k] of each rank -> [rows, n * k] in the order of ranks. Raises RuntimeError where a rank is gone."""
        self.counts["all_gather"] += 1
        return self._group.all_gather(x.contiguous()).transpose(0, 1).flatten(1)

    @property
    def _group(self) -> Group:
        assert self.group is not None, "a rank that never joined has nobody to call"
        return self.group


ALONE = Ranks()


def join(rank: int, n: int, meeting: Path, device: torch.device) -> Ranks:
    """Meet n - 1 others at the file `meeting`, which none of them wrote before; whoever made its directory removes it.

    In that file's own memory for a CPU; by hccl for an NPU, where no call waits for the device. Raises RuntimeError
    (dist.DistError) where the others do not come.
    """
    if device.type != "npu":
        return Ranks(rank=rank, n=n, group=SharedMemoryGroup(rank, n, meeting))
    import torch.distributed as dist  # what only several NPUs need
    from torch._C._distributed_c10d import FileStore

    store = FileStore(str(meeting), n)
    store.set_timeout(_PATIENCE)
    # torch_npu registered it; there is one such group in a process.
    dist.init_process_group("hccl", store=store, rank=rank, world_size=n, timeout=_PATIENCE)
    return Ranks(rank=rank, n=n, group=HcclGroup(n, dist.group.WORLD))
