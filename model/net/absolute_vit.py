"""A vision tower with learned absolute positions, for square pictures of one size, or tiles of larger ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from model.net.norm import Norm, take_norm
from model.net.vision import (
    BlockNames,
    BlockSpec,
    PatchEmbed,
    PixelSpec,
    VisionBlock,
    in_groups,
    joined,
    resample_positions,
    take_blocks,
    take_patch_embed,
)
from model.ops.base import Ops
from model.weights import Weights

MAX_ROWS = 8192  # patches that go through the tower at a time, unless one picture has more


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteVitSpec:
    block: BlockSpec
    depth: int  # blocks that are computed
    patch: int  # side of a patch in pixels
    side: int  # side of a picture in patches
    positions: int  # rows of the table of positions, without that of a class token: a square, resampled if not side^2
    pixels: PixelSpec
    features: tuple[int, ...] | None = None  # after how many blocks each is taken, side by side; None: after the last
    shows_class: bool = False  # the class token, where there is one, goes on to the connector, before the patches
    merge: int = 1  # patches come in blocks of merge x merge, so that each block lies together


OPEN_CLIP = BlockNames(
    norm1="ln_1", qkv=("attn.in_proj",), proj="attn.out_proj", norm2="ln_2", up=("mlp.c_fc",), down="mlp.c_proj",
    per_head=True,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteVitNames:
    """Tensor names on disk."""

    block: BlockNames = OPEN_CLIP  # after `blocks`.N
    patch: str = "conv1.weight"
    patch_bias: str | None = None
    positions: str = "positional_embedding"
    class_token: str | None = None  # None: there is none; else it has the first position
    batched: bool = False  # the table of positions has a first dimension of 1, and the class token two
    norm: str | None = "ln_pre"
    blocks: str = "transformer.resblocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteVit:
    spec: AbsoluteVitSpec
    embed: PatchEmbed
    class_row: Tensor | None  # [1, width]: the class token with its position
    positions: Tensor  # [side^2, width]
    norm: Norm | None  # before the first block; there is none after the last
    blocks: tuple[VisionBlock, ...]
    connector: Callable[[Tensor], Tensor]  # [rows, features * width] -> [tokens, hidden]

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def input_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """Of one picture of `grid` (tiles, h, w): patches row by row or in blocks, columns (channel, y, x)."""
        t, h, w = grid
        return (t * h * w, 3 * self.spec.patch**2)

    def __call__(self, arrays: Sequence[Tensor], grids: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """uint8 [n * side^2, 3 * patch^2], grid (n, side, side) -> [n * tokens, hidden], of each.

        Raises ValueError for any other.
        """
        side = self.spec.side
        for pixels, grid in zip(arrays, grids, strict=True):
            if grid[0] < 1 or grid[1:] != (side, side) or tuple(pixels.shape) != self.input_shape(grid):
                shape = list(pixels.shape)
                raise ValueError(f"pixels {shape} do not fit {grid}: this tower takes {side} x {side} patches")
        tiles = [tile for pixels in arrays for tile in pixels.split(side * side)]
        found: list[Tensor] = []
        for group in in_groups([side * side] * len(tiles), MAX_ROWS):
            found += self._encode([tiles[i] for i in group])
        left = iter(found)
        return [joined(list(islice(left, n))) for n, _, _ in grids]

    def _encode(self, pictures: Sequence[Tensor]) -> list[Tensor]:
        n = len(pictures)
        x = self.embed(joined(pictures)).unflatten(0, (n, -1)) + self.positions  # [n, side^2, width]
        if self.class_row is not None:
            x = torch.cat([self.class_row.expand(n, 1, -1), x], dim=1)
        segments = [x.shape[1]] * n
        rows = x.flatten(0, 1)
        x = self._features(rows if self.norm is None else self.norm(rows), segments).unflatten(0, (n, -1))
        first = 0 if self.class_row is None or self.spec.shows_class else 1
        return [self.connector(picture[first:]) for picture in x.unbind(0)]

    def _features(self, x: Tensor, segments: Sequence[int]) -> Tensor:
        """[rows, width], before the first block -> [rows, features * width]; segments: rows of each picture"""
        wanted = self.spec.features or (self.spec.depth,)
        taken = {}
        for n, block in enumerate(self.blocks, 1):
            x = block(x, None, segments)
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
    names, width = names or AbsoluteVitNames(), spec.block.width
    kernel = (width, 3, spec.patch, spec.patch)
    blocks = take_blocks(ops, weights, spec.block, f"{prefix}{names.blocks}.", spec.depth, names.block)
    n_before = 0 if names.class_token is None else 1
    one = (1,) if names.batched else ()
    table = weights.take(f"{prefix}{names.positions}", (*one, n_before + spec.positions, width), torch.float32)
    table = table.view(-1, width)
    class_row: Tensor | None = None
    if names.class_token is not None:
        token = weights.take(f"{prefix}{names.class_token}", (*one, *one, width))
        class_row = token.view(1, width) + table[:1].to(ops.dtype)
    positions = _in_blocks(resample_positions(table[n_before:], spec.side), spec.merge)
    if names.patch_bias is not None:  # every picture has the same patches, so it goes with their positions
        positions = positions + weights.take(f"{prefix}{names.patch_bias}", (width,), torch.float32)
    return AbsoluteVit(
        spec=spec,
        embed=take_patch_embed(ops, weights, f"{prefix}{names.patch}", kernel, spec.pixels),
        class_row=class_row,
        positions=positions.to(ops.dtype),
        norm=take_norm(ops, weights, "layer", f"{prefix}{names.norm}", width, spec.block.eps) if names.norm else None,
        blocks=blocks,
        connector=connector,
    )


def _in_blocks(table: Tensor, merge: int) -> Tensor:
    """[side^2, width] row by row -> the same in blocks of merge x merge."""
    side = round(table.shape[0] ** 0.5)
    grid = table.view(side // merge, merge, side // merge, merge, -1)
    return grid.transpose(1, 2).reshape(side * side, -1)
