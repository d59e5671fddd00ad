"""Norms with their weights."""

from collections.abc import Callable

from torch import Tensor

from model.ops.base import Ops
from model.weights import Weights

Norm = Callable[[Tensor], Tensor]


def take_layer_norm(ops: Ops, weights: Weights, name: str, width: int, eps: float) -> Norm:
    weight, bias = weights.take(f"{name}.weight", (width,)), weights.take(f"{name}.bias", (width,))
    return lambda x: ops.layer_norm(x, weight, bias, eps)


def take_rms_norm(ops: Ops, weights: Weights, name: str, width: int, eps: float) -> Norm:
    weight = weights.take(f"{name}.weight", (width,))
    return lambda x: ops.rms_norm(x, weight, eps)
