"""Chooses the Ops that serve a device."""

import torch

from model.ops.base import Ops
from model.ops.collectives import ALONE, Ranks
from model.ops.torch_ops import TorchOps


def load_ops(
    device: torch.device, dtype: torch.dtype, *, checks: bool = False, ranks: Ranks = ALONE, kind: str | None = None
) -> Ops:  # fmt: skip
    """checks: of an NPU, the documented rules of its operators are asked before every launch.

    kind: whose sizes hold where `device` has shapes alone; None: its own.
    """
    if (kind or device.type) == "npu":
        from model.ops.npu import NpuOps

        return NpuOps(device, dtype, checks=checks, ranks=ranks)
    return TorchOps(device, dtype, ranks, kind)
