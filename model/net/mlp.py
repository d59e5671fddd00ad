"""Two linears with an activation between them, which a name chooses: the feed-forward part of every block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from model.net.linear_weights import take_fused, take_row_parallel
from model.net.rank_parts import gate_up_places
from model.ops.base import Ops
from model.weights import Weights

Mlp = Callable[[Tensor], Tensor]
Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu_squared", "swiglu", "geglu"]
GATED = ("swiglu", "geglu")  # activation(first half) * second half of twice as many outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    width: int
    inter: int
    out: int
    activation: Activation
    bias: bool


def take_mlp(
    ops: Ops, weights: Weights, up: Sequence[str], down: str, spec: MlpSpec, scale: Tensor | None = None,
    part: range | None = None,
) -> Mlp:  # fmt: skip
    """up: names of the first linear; of a gated one gate and up, or the one name of both, fused on disk.

    scale: float32 [out], a factor of each output. part: of the channels between both, those of this rank; all ranks get
    the sum. None: this process has all.
    """
    n = 2 if spec.activation in GATED else 1
    parts = [(name, n * spec.inter // len(up)) for name in up]
    rows = None if part is None else gate_up_places(spec.inter, n, part)
    first = take_fused(ops, weights, parts, spec.width, bias=spec.bias, rows=rows)
    second = take_row_parallel(ops, weights, down, spec.out, spec.inter, bias=spec.bias, part=part, scale=scale)
    activation = activation_of(ops, spec.activation)
    return lambda x: second(activation(first(x)))


def activation_of(ops: Ops, name: Activation) -> Callable[[Tensor], Tensor]:
    if name == "geglu":
        return lambda gate_up: _geglu(ops, gate_up)
    found: Callable[[Tensor], Tensor] = getattr(ops, name)
    return found


def _geglu(ops: Ops, gate_up: Tensor) -> Tensor:  # of Mistral Small 3.1's tower, where it is not SwiGLU
    gate, up = gate_up.chunk(2, dim=-1)
    return ops.gelu(gate) * up
