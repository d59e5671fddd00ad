"""Chooses the Ops that serve a device."""

import torch

from model.ops.base import Ops
from model.ops.torch_ops import TorchOps


def load_ops(device: torch.device, dtype: torch.dtype, *, checks: bool = False) -> Ops:
    """checks: of an NPU, the documented rules of its operators are asked before every launch."""
    if device.type == "npu":
        from model.ops.npu import NpuOps

        return NpuOps(device, dtype, checks=checks)
    return TorchOps(device, dtype)
