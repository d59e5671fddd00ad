"""Norms with their weights: alone, or of a sum that becomes the new residual."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from model.ops.base import Ops
from model.weights import Weights

NormKind = Literal["rms", "layer"]
Norm = Callable[[Tensor], Tensor]
AddNorm = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(x, residual) -> (the norm of their sum, the sum), for which it may write into either."""


def take_layer_norm(ops: Ops, weights: Weights, name: str, width: int, eps: float, order: Tensor | None = None) -> Norm:
    """order: int64 [width], for each channel where it lies on disk; None: as they lie there."""
    weight, bias = (_take(weights, f"{name}.{part}", width, order) for part in ("weight", "bias"))
    return lambda x: ops.layer_norm(x, weight, bias, eps)


def take_rms_norm(ops: Ops, weights: Weights, name: str, width: int, eps: float, order: Tensor | None = None) -> Norm:
    """order: as of `take_layer_norm`."""
    weight = _take(weights, f"{name}.weight", width, order)
    return lambda x: ops.rms_norm(x, weight, eps)


def take_add_norm(ops: Ops, weights: Weights, kind: NormKind, name: str, width: int, eps: float) -> AddNorm:
    weight = weights.take(f"{name}.weight", (width,))
    if kind == "rms":
        return lambda x, residual: ops.add_rms_norm(x, residual, weight, eps)
    bias = weights.take(f"{name}.bias", (width,))
    return lambda x, residual: ops.add_layer_norm(x, residual, weight, bias, eps)


def _take(weights: Weights, name: str, width: int, order: Tensor | None) -> Tensor:
    taken = weights.take(name, (width,))
    return taken if order is None else taken.index_select(0, order.to(taken.device))
