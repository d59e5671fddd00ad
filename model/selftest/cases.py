"""One operation with one shape: how its inputs are drawn, and how it is called on any Ops."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.ops.base import Ops

Inputs = Mapping[str, Tensor]
Call = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    op: str  # a method of Ops
    name: str  # shape, and what is special about it
    draw: Callable[[torch.Generator], dict[str, Tensor]]  # on the CPU: float32, or integers as they are
    bind: Callable[[Ops, Inputs], Call]  # all but what is timed is done here; inputs may be written into
    tolerance: float | None = None  # None: that of the dtype; 0 where nothing is computed
    expected: tuple[Tensor, ...] = ()  # what others computed; empty: the specification is asked


def normal(generator: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=generator) * scale


def elementwise_cases() -> Iterator[Case]:
    for rows, width in ((1, 64), (7, 192), (64, 3584), (1, 8192)):
        yield from _norms(rows, width)
    for rows, n_in, n_out in ((1, 192, 512), (17, 3584, 1280), (3, 1176, 160)):
        yield from _linears(rows, n_in, n_out)
    for rows, width in ((1, 96), (7, 352), (64, 4736)):
        yield _swiglu(rows, width)
    for op in ("quick_gelu", "gelu", "gelu_tanh", "relu_squared"):
        for rows, width in ((1, 64), (7, 384), (64, 5120)):
            yield _activation(op, rows, width)
    for rows, heads, dim in ((1, 6, 32), (17, 4, 64), (300, 16, 80), (33, 28, 128)):
        for view in (False, True):
            yield _rotary(rows, heads, dim, view)


def small_cases() -> Iterator[Case]:
    """One of each kind, in sizes whose results can be stored."""
    yield from _norms(3, 64)
    yield from _linears(3, 48, 32)
    yield _swiglu(3, 64)
    for op in ("quick_gelu", "gelu", "gelu_tanh", "relu_squared"):
        yield _activation(op, 3, 64)
    for op in ("quick_gelu", "gelu", "gelu_tanh"):
        yield _tail(op)
    for view in (False, True):
        yield _rotary(5, 2, 32, view)


def _norms(rows: int, width: int) -> Iterator[Case]:
    def draw(generator: torch.Generator) -> dict[str, Tensor]:
        x = normal(generator, rows, width)
        x[1:2, width // 3] = 200.0  # as in real networks, one channel stands out
        return {
            "x": x, "residual": normal(generator, rows, width, scale=3.0),
            "weight": 1 + normal(generator, width, scale=0.1), "bias": normal(generator, width, scale=0.1),
        }  # fmt: skip

    shape = f"{rows} x {width}"
    yield Case(
        op="rms_norm", name=shape, draw=draw, bind=lambda ops, i: lambda: [ops.rms_norm(i["x"], i["weight"], 1e-6)]
    )
    yield Case(
        op="add_rms_norm", name=shape, draw=draw,
        bind=lambda ops, i: lambda: ops.add_rms_norm(i["x"], i["residual"], i["weight"], 1e-6),
    )  # fmt: skip
    yield Case(
        op="layer_norm", name=shape, draw=draw,
        bind=lambda ops, i: lambda: [ops.layer_norm(i["x"], i["weight"], i["bias"], 1e-6)],
    )  # fmt: skip
    yield Case(
        op="add_layer_norm", name=shape, draw=draw,
        bind=lambda ops, i: lambda: ops.add_layer_norm(i["x"], i["residual"], i["weight"], i["bias"], 1e-6),
    )  # fmt: skip


def _linears(rows: int, n_in: int, n_out: int) -> Iterator[Case]:
    def draw(generator: torch.Generator) -> dict[str, Tensor]:
        weight = normal(generator, n_out, n_in, scale=n_in**-0.5)
        return {"x": normal(generator, rows, n_in), "weight": weight, "bias": normal(generator, n_out)}

    def bind(ops: Ops, inputs: Inputs, biased: bool) -> Call:
        linear = ops.linear(inputs["weight"], inputs["bias"] if biased else None)
        return lambda: [linear(inputs["x"])]

    shape = f"{rows} x {n_in} to {n_out}"
    yield Case(op="linear", name=shape, draw=draw, bind=lambda ops, inputs: bind(ops, inputs, False))
    yield Case(op="linear", name=f"{shape}, bias", draw=draw, bind=lambda ops, inputs: bind(ops, inputs, True))


def _swiglu(rows: int, width: int) -> Case:
    return Case(
        op="swiglu", name=f"{rows} x {2 * width}",
        draw=lambda generator: {"x": normal(generator, rows, 2 * width, scale=3.0)},
        bind=lambda ops, inputs: lambda: [ops.swiglu(inputs["x"])],
    )  # fmt: skip


def _activation(op: str, rows: int, width: int) -> Case:
    def draw(generator: torch.Generator) -> dict[str, Tensor]:
        return {"x": torch.cat([torch.linspace(-4, 4, width)[None], normal(generator, rows - 1, width, scale=1.5)])}

    def bind(ops: Ops, inputs: Inputs) -> Call:
        given = inputs["x"]
        return lambda: [getattr(ops, op)(given.clone())]  # some write into it

    return Case(op=op, name=f"{rows} x {width}", draw=draw, bind=bind)


def _tail(op: str) -> Case:
    """Where exact, by tanh and by sigmoid lie a twentieth apart, which any dtype tells."""
    return dataclasses.replace(
        _activation(op, 1, 32), name="from -4 to -2.75", tolerance=0.02,
        draw=lambda _: {"x": torch.linspace(-4, -2.75, 32)[None]},
    )  # fmt: skip


def _rotary(rows: int, heads: int, dim: int, view: bool) -> Case:
    def draw(generator: torch.Generator) -> dict[str, Tensor]:
        frequencies = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        angles = (torch.randint(0, 4096, (rows, 1), generator=generator) * frequencies).repeat(1, 2)
        # The angles arrive in float32, and each Ops rounds them as it must.
        return {"x": normal(generator, rows, 3, heads, dim), "cos": angles.cos(), "sin": angles.sin()}

    def bind(ops: Ops, inputs: Inputs) -> Call:
        angles = ops.rotary_angles(inputs["cos"], inputs["sin"])
        x = inputs["x"][:, 1] if view else inputs["x"][:, 1].contiguous()
        return lambda: [ops.rotary(x, *angles)]

    kind = ", a view into wider rows" if view else ""
    return Case(op="rotary", name=f"{rows} rows, {heads} heads of {dim}{kind}", draw=draw, bind=bind)
