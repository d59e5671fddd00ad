"""Norms with their weights: alone, or of a sum that becomes the new residual."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from model.ops.base import Ops
from model.weights import Weights

NormKind = Literal["rms", "layer"]
Norm = Callable[[Tensor], Tensor]
AddNorm = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(x, residual) -> (the norm of their sum, the sum), for which it may write into either; without a residual of x."""


def take_norm(
    ops: Ops, weights: Weights, kind: NormKind, name: str, width: int, eps: float, order: Tensor | None = None
) -> Norm:
    """order: int64 [width], for each channel where it lies on disk; None: as they lie there."""
    weight = _take(weights, f"{name}.weight", width, order)
    if kind == "rms":
        return lambda x: ops.rms_norm(x, weight, eps)
    bias = _take(weights, f"{name}.bias", width, order)
    return lambda x: ops.layer_norm(x, weight, bias, eps)


def take_add_norm(ops: Ops, weights: Weights, kind: NormKind, name: str, width: int, eps: float) -> AddNorm:
    weight = weights.take(f"{name}.weight", (width,))
    bias = weights.take(f"{name}.bias", (width,)) if kind == "layer" else None

    def norm(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if bias is None:
            return (ops.rms_norm(x, weight, eps), x) if residual is None else ops.add_rms_norm(x, residual, weight, eps)
        if residual is None:
            return ops.layer_norm(x, weight, bias, eps), x
        return ops.add_layer_norm(x, residual, weight, bias, eps)

    return norm


def _take(weights: Weights, name: str, width: int, order: Tensor | None) -> Tensor:
    taken = weights.take(name, (width,))
    return taken if order is None else taken.index_select(0, order.to(taken.device))
