"""A vision tower with learned absolute positions, for square pictures of one size."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.net.linear import per_head_rows, take_fused, take_linear
from model.net.norm import Norm, take_layer_norm
from model.net.vision import PatchEmbed, PixelSpec, VisionBlock, resample_positions, take_patch_embed
from model.ops.base import Ops
from model.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteVitSpec:
    width: int
    depth: int
    heads: int
    inter: int
    patch: int  # side of a patch in pixels
    side: int  # side of a picture in patches
    positions: int  # rows of the table of positions: a square number, resampled where it is not side^2
    eps: float
    pixels: PixelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteVit:
    spec: AbsoluteVitSpec
    embed: PatchEmbed
    positions: Tensor  # [side^2, width]
    norm: Norm  # before the first block; there is none after the last
    blocks: tuple[VisionBlock, ...]
    connector: Callable[[Tensor], Tensor]  # [side^2, width] -> [tokens, hidden]

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def input_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """Of one picture of `grid` (1, h, w): patches row by row, columns (channel, y, x)."""
        t, h, w = grid
        return (t * h * w, 3 * self.spec.patch**2)

    def __call__(self, pixels: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """uint8 [side^2, 3 * patch^2], grid (1, side, side) -> [tokens, hidden]. Raises ValueError for any other."""
        side = self.spec.side
        if grid != (1, side, side) or tuple(pixels.shape) != self.input_shape(grid):
            raise ValueError(f"pixels {list(pixels.shape)} do not fit {grid}: this tower takes {side} x {side} patches")
        x = self.norm(self.embed(pixels) + self.positions)
        for block in self.blocks:
            x = block(x, None, [side * side])
        return self.connector(x)


def build_absolute_vit(
    ops: Ops, weights: Weights, spec: AbsoluteVitSpec, prefix: str, connector: Callable[[Tensor], Tensor]
) -> AbsoluteVit:
    """Take a tower's tensors under `prefix` ("visual."), named as in OpenCLIP, each block's qkv head by head."""
    ops.check_heads(spec.heads, spec.heads, spec.width // spec.heads)
    kernel = (spec.width, 3, spec.patch, spec.patch)
    table = weights.take(f"{prefix}positional_embedding", (spec.positions, spec.width), torch.float32)
    blocks = [f"{prefix}transformer.resblocks.{i}." for i in range(spec.depth)]
    return AbsoluteVit(
        spec=spec,
        embed=take_patch_embed(ops, weights, f"{prefix}conv1.weight", kernel, spec.pixels),
        positions=resample_positions(table, spec.side).to(ops.dtype),
        norm=take_layer_norm(ops, weights, f"{prefix}ln_pre", spec.width, spec.eps),
        blocks=tuple(_build_block(ops, weights, spec, block) for block in blocks),
        connector=connector,
    )


def _build_block(ops: Ops, weights: Weights, spec: AbsoluteVitSpec, prefix: str) -> VisionBlock:
    qkv, rows = (f"{prefix}attn.in_proj", 3 * spec.width), per_head_rows(spec.heads, spec.width // spec.heads)
    first = take_linear(ops, weights, f"{prefix}mlp.c_fc", spec.inter, spec.width, bias=True)
    second = take_linear(ops, weights, f"{prefix}mlp.c_proj", spec.width, spec.inter, bias=True)
    return VisionBlock(
        ops=ops,
        heads=spec.heads,
        norm1=take_layer_norm(ops, weights, f"{prefix}ln_1", spec.width, spec.eps),
        qkv=take_fused(ops, weights, [qkv], spec.width, bias=True, rows=rows),
        proj=take_linear(ops, weights, f"{prefix}attn.out_proj", spec.width, spec.width, bias=True),
        norm2=take_layer_norm(ops, weights, f"{prefix}ln_2", spec.width, spec.eps),
        mlp=lambda x: second(ops.gelu(first(x))),
    )
