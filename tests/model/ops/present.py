"""Every Ops that can run here, by name; those of an NPU over the references of tests/npu."""

from collections.abc import Callable
from functools import partial

import torch

from model.ops.base import Ops
from model.ops.npu import NpuOps
from model.ops.torch_ops import TorchOps
from tests.npu.ring0 import define_operators

PRESENT: dict[str, tuple[Callable[..., Ops], torch.dtype]] = {
    "torch-float32": (TorchOps, torch.float32),
    "torch-bfloat16": (TorchOps, torch.bfloat16),
    "npu-bfloat16": (partial(NpuOps, checks=True), torch.bfloat16),
}


def present_ops(name: str) -> Ops:
    """On the CPU."""
    define_operators()
    kind, dtype = PRESENT[name]
    return kind(torch.device("cpu"), dtype)
