"""Which Ops serves a device: the one place that chooses. Knows no model."""

import torch

from model.ops.base import Ops
from model.ops.torch_ops import TorchOps


def load_ops(device: torch.device, dtype: torch.dtype) -> Ops:
    """The Ops of `device` (as model.device.resolve gave it), computing in `dtype`."""
    return TorchOps(device, dtype)
