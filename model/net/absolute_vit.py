"""A vision tower with learned absolute positions, for square pictures of one size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from model.net.linear import per_head_rows, take_fused, take_linear
from model.net.norm import Norm, take_layer_norm
from model.net.vision import PatchEmbed, PixelSpec, VisionBlock, head_dim_of, resample_positions, take_patch_embed
from model.ops.base import Ops
from model.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteVitSpec:
    width: int
    depth: int  # blocks that are computed
    heads: int
    inter: int
    patch: int  # side of a patch in pixels
    side: int  # side of a picture in patches
    positions: int  # rows of the table of positions, without that of a class token: a square, resampled if not side^2
    eps: float
    pixels: PixelSpec
    activation: Literal["gelu", "quick_gelu"] = "gelu"
    features: tuple[int, ...] | None = None  # after how many blocks each is taken, side by side; None: after the last
    shows_class: bool = False  # the class token, where there is one, goes on to the connector, before the patches


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteVitNames:
    """Tensor names on disk, those of a block after `blocks`.N; qkv of one name is fused on disk, head by head."""

    patch: str = "conv1.weight"
    positions: str = "positional_embedding"
    class_token: str | None = None  # None: there is none; else it has the first position
    norm: str = "ln_pre"
    blocks: str = "transformer.resblocks"
    norm1: str = "ln_1"
    qkv: tuple[str, ...] = ("attn.in_proj",)
    proj: str = "attn.out_proj"
    norm2: str = "ln_2"
    first: str = "mlp.c_fc"
    second: str = "mlp.c_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteVit:
    spec: AbsoluteVitSpec
    embed: PatchEmbed
    class_row: Tensor | None  # [1, width]: the class token with its position
    positions: Tensor  # [side^2, width]
    norm: Norm  # before the first block; there is none after the last
    blocks: tuple[VisionBlock, ...]
    connector: Callable[[Tensor], Tensor]  # [rows, features * width] -> [tokens, hidden]

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
        x = self.embed(pixels) + self.positions
        if self.class_row is not None:
            x = torch.cat([self.class_row, x])
        x = self._features(self.norm(x))
        return self.connector(x if self.class_row is None or self.spec.shows_class else x[1:])

    def _features(self, x: Tensor) -> Tensor:
        """[rows, width], before the first block -> [rows, features * width]"""
        wanted = self.spec.features or (self.spec.depth,)
        taken = {}
        for n, block in enumerate(self.blocks, 1):
            x = block(x, None, [x.shape[0]])
            if n in wanted:
                taken[n] = x
        return x if wanted == (self.spec.depth,) else torch.cat([taken[n] for n in wanted], dim=-1)


def build_absolute_vit(
    ops: Ops,
    weights: Weights,
    spec: AbsoluteVitSpec,
    prefix: str,
    connector: Callable[[Tensor], Tensor],
    names: AbsoluteVitNames | None = None,
) -> AbsoluteVit:
    """Take a tower's tensors under `prefix` ("visual."); names None: those of OpenCLIP."""
    ops.check_heads(spec.heads, spec.heads, head_dim_of(spec.width, spec.heads))
    names = names or AbsoluteVitNames()
    weights.check_blocks(f"{prefix}{names.blocks}.", spec.depth)
    kernel = (spec.width, 3, spec.patch, spec.patch)
    n_before = 0 if names.class_token is None else 1
    table = weights.take(f"{prefix}{names.positions}", (n_before + spec.positions, spec.width), torch.float32)
    class_row: Tensor | None = None
    if names.class_token is not None:
        token = weights.take(f"{prefix}{names.class_token}", (spec.width,))
        class_row = token[None] + table[:1].to(ops.dtype)
    blocks = [f"{prefix}{names.blocks}.{i}." for i in range(spec.depth)]
    return AbsoluteVit(
        spec=spec,
        embed=take_patch_embed(ops, weights, f"{prefix}{names.patch}", kernel, spec.pixels),
        class_row=class_row,
        positions=resample_positions(table[n_before:], spec.side).to(ops.dtype),
        norm=take_layer_norm(ops, weights, f"{prefix}{names.norm}", spec.width, spec.eps),
        blocks=tuple(_build_block(ops, weights, spec, block, names) for block in blocks),
        connector=connector,
    )


def _build_block(
    ops: Ops, weights: Weights, spec: AbsoluteVitSpec, prefix: str, names: AbsoluteVitNames
) -> VisionBlock:
    width, activation = spec.width, ops.gelu if spec.activation == "gelu" else ops.quick_gelu
    first = take_linear(ops, weights, f"{prefix}{names.first}", spec.inter, width, bias=True)
    second = take_linear(ops, weights, f"{prefix}{names.second}", width, spec.inter, bias=True)
    fused = len(names.qkv) == 1
    parts = [(prefix + name, 3 * width // len(names.qkv)) for name in names.qkv]
    rows = per_head_rows(spec.heads, width // spec.heads) if fused else None
    return VisionBlock(
        ops=ops,
        heads=spec.heads,
        norm1=take_layer_norm(ops, weights, f"{prefix}{names.norm1}", width, spec.eps),
        qkv=take_fused(ops, weights, parts, width, bias=True, rows=rows),
        proj=take_linear(ops, weights, f"{prefix}{names.proj}", width, width, bias=True),
        norm2=take_layer_norm(ops, weights, f"{prefix}{names.norm2}", width, spec.eps),
        mlp=lambda x: second(activation(first(x))),
    )
