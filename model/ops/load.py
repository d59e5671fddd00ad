"""Chooses the Ops that serve a device."""

import torch

from model.ops.base import Ops
from model.ops.torch_ops import TorchOps


def load_ops(device: torch.device, dtype: torch.dtype) -> Ops:
    if device.type == "npu":
        from model.ops.npu import NpuOps

        return NpuOps(device, dtype)
    return TorchOps(device, dtype)
