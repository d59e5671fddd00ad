"""The seam to other ranks: what a process that holds a part of a model asks of those that hold the rest."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

_PATIENCE = timedelta(minutes=10)  # of one call: a rank that hangs is found by its pulse long before


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This rank among `n`. All ranks make the same calls in the same order; a call returns when all have made it."""

    rank: int = 0
    n: int = 1
    group: Any = None  # of torch.distributed; None: it is alone, or only shapes are wanted of it
    counts: Counter[str] = field(default_factory=Counter)  # calls by name

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over all ranks, bit for bit the same on each. Writes into x where it is contiguous.

        Raises RuntimeError where a rank is gone.
        """
        self.counts["all_reduce"] += 1
        x = x.contiguous()
        self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """[rows, k] of each rank -> [rows, n * k] in the order of ranks. Raises RuntimeError where a rank is gone."""
        self.counts["all_gather"] += 1
        found = x.new_empty((self.n * x.shape[0], x.shape[1]))
        self._group._allgather_base(found, x.contiguous()).wait()
        joined: Tensor = found.unflatten(0, (self.n, -1)).transpose(0, 1).flatten(1)
        return joined

    @property
    def _group(self) -> Any:
        assert self.group is not None, "a rank that never joined has nobody to call"
        return self.group


ALONE = Ranks()


def join(rank: int, n: int, meeting: Path, device: torch.device) -> Ranks:
    """Meet n - 1 others at the file `meeting`, which none of them wrote before; whoever made its directory removes it.

    By gloo over the loopback interface for a CPU, by hccl for an NPU, where no call waits for the device. Raises
    RuntimeError (dist.DistError) where the others do not come.
    """
    store = FileStore(str(meeting), n)
    store.set_timeout(_PATIENCE)
    if device.type == "npu":  # torch_npu registered it; there is one such group in a process
        dist.init_process_group("hccl", store=store, rank=rank, world_size=n, timeout=_PATIENCE)
        return Ranks(rank=rank, n=n, group=dist.group.WORLD)
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stubs lack it
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = _PATIENCE
    return Ranks(rank=rank, n=n, group=dist.ProcessGroupGloo(store, rank, n, options))
