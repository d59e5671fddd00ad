"""The encoder block and the patch embeddings that towers share."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.checkpoint import CheckpointError, ConfigSection
from model.net.linear_weights import per_head_rows, take_fused, take_linear, widened
from model.net.mlp import Activation, Mlp, MlpSpec, take_mlp
from model.net.norm import Norm, NormKind, take_norm
from model.ops.base import Linear, Ops
from model.weights import Weights

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchEmbed:
    scale: Tensor  # float32 [columns]: factor of each column
    shift: Tensor  # float32 [columns]: added after it
    proj: Linear
    dtype: torch.dtype

    def __call__(self, pixels: Tensor) -> Tensor:
        """uint8 [n, columns] -> [n, width]"""
        return self.proj(torch.addcmul(self.shift, pixels.float(), self.scale).to(self.dtype))

    def of(self, pixels: "PixelSpec") -> "PatchEmbed":
        """The same for values that are normalised otherwise."""
        scale, shift = _normalising(pixels, len(self.scale) // len(pixels.mean))
        return replace(self, scale=scale.to(self.scale.device), shift=shift.to(self.shift.device))


def take_patch_embeds(
    ops: Ops, weights: Weights, name: str, shape: tuple[int, ...], still: "PixelSpec", moving: "PixelSpec",
    *, bias: bool = False,
) -> tuple[PatchEmbed, PatchEmbed]:  # fmt: skip
    """A Conv3d `name`.weight [width, channels, frames, side, side], for still images and for videos.

    A still's frames are alike: its kernel is the sum. Columns (channel, y, x), of videos (channel, frame, y, x).
    """
    kernel = weights.take(f"{name}.weight", shape, torch.float32)
    added = weights.take(f"{name}.bias", shape[:1]) if bias else None
    return _patch_embed(ops, kernel.sum(dim=2), still, added), _patch_embed(ops, kernel, moving, added)


def take_patch_embed(ops: Ops, weights: Weights, name: str, shape: tuple[int, ...], pixels: "PixelSpec") -> PatchEmbed:
    """A Conv2d kernel [width, channels, side, side] without overlap or bias; a patch is (channel, y, x)."""
    return _patch_embed(ops, weights.take(name, shape, torch.float32), pixels)


def take_patch_linear(
    ops: Ops, weights: Weights, name: str, shape: tuple[int, int, int, int], pixels: "PixelSpec"
) -> PatchEmbed:
    """A biased linear over whole patches [width, side, side, channels]; a patch is (channel, y, x) all the same."""
    width, *patch = shape
    kernel = weights.take(f"{name}.weight", (width, math.prod(patch)), torch.float32).view(shape)
    return _patch_embed(ops, kernel.permute(0, 3, 1, 2), pixels, weights.take(f"{name}.bias", (width,)))


def _patch_embed(ops: Ops, kernel: Tensor, pixels: "PixelSpec", bias: Tensor | None = None) -> PatchEmbed:
    """kernel: float32 [width, channels, ...]"""
    scale, shift = _normalising(pixels, kernel[0, 0].numel())
    return PatchEmbed(
        scale=scale.to(ops.device),
        shift=shift.to(ops.device),
        proj=ops.linear(kernel.flatten(1).to(ops.dtype), bias),
        dtype=ops.dtype,
    )


def _normalising(pixels: "PixelSpec", repeats: int) -> tuple[Tensor, Tensor]:
    """float32 (scale, shift) [columns], of as many columns for each channel."""
    mean = torch.tensor(pixels.mean, dtype=torch.float64).repeat_interleave(repeats)
    std = torch.tensor(pixels.std, dtype=torch.float64).repeat_interleave(repeats)
    return (pixels.rescale / std).float(), (-mean / std).float()


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelSpec:
    """How raw channel values become the tower's input: (value * rescale - mean) / std."""

    rescale: float
    mean: tuple[float, ...]  # per channel
    std: tuple[float, ...]


def read_pixels(
    pictures: ConfigSection, *, mean: tuple[float, ...] = CLIP_MEAN, std: tuple[float, ...] = CLIP_STD
) -> PixelSpec:
    """By a processor's file. mean, std: of its class, where it names none."""
    pictures.expect("do_rescale", (True,), True)
    pictures.expect("do_normalize", (True,), True)
    return PixelSpec(
        rescale=pictures.positive("rescale_factor", 1 / 255),
        mean=pictures.numbers("image_mean", mean),
        std=pictures.numbers("image_std", std),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionBlock:
    ops: Ops
    heads: int
    scale: float  # of products of the heads as they are on disk
    norm1: Norm
    qkv: Linear  # width -> query heads, key heads, value heads, each as wide as attention wants it
    proj: Linear
    norm2: Norm
    mlp: Mlp
    whole_norms: tuple[Norm, Norm] | None = None  # of all queries and of all keys of a row, before they are heads

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor] | None, segments: Sequence[int]) -> Tensor:
        """x [n, width]; angles: of `Ops.rotary_angles`, None: none; segments: host lengths, sum n. -> [n, width]"""
        ops, heads = self.ops, self.heads
        qkv = self.qkv(self.norm1(x))
        if self.whole_norms is not None:
            query, key, value = qkv.chunk(3, dim=-1)
            of_query, of_key = self.whole_norms
            qkv = torch.cat([of_query(query), of_key(key), value], dim=-1)
        qkv = qkv.unflatten(-1, (3 * heads, -1))  # [n, 3 * heads, head_dim]
        qk = qkv[:, : 2 * heads] if angles is None else ops.rotary(qkv[:, : 2 * heads], *angles)
        mixed = ops.segment_attention(qk[:, :heads], qk[:, heads:], qkv[:, 2 * heads :], segments, self.scale)
        x = self.proj(mixed.flatten(1)).add_(x)
        return self.mlp(self.norm2(x)).add_(x)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    width: int
    heads: int
    inter: int
    eps: float
    activation: Activation
    norm: NormKind = "layer"
    bias: bool = True  # of the linears
    qkv_bias: bool = True  # of queries, keys and values, where the linears have one
    whole_norm_eps: float | None = None  # of RMSNorms over all queries and all keys of a row; None: there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNames:
    """Tensor names on disk, without the block's prefix; a tuple of one name is a matrix fused on disk."""

    norm1: str
    qkv: tuple[str, ...]
    proj: str
    norm2: str
    up: tuple[str, ...]  # of a gated activation gate and up
    down: str
    unbiased: tuple[str, ...] = ()  # of qkv: those without a bias
    per_head: bool = False  # rows of a fused qkv are (heads, 3, head_dim) instead of (3, heads, head_dim)
    whole_norms: tuple[str, str] = ("", "")  # of the queries and of the keys, where there are such
    # Layer scale: a factor for each channel that attention, and that the feed-forward part, adds. None: there is none.
    scales: tuple[str, str] | None = None


def take_block(ops: Ops, weights: Weights, spec: BlockSpec, prefix: str, names: BlockNames) -> VisionBlock:
    width, bias = spec.width, spec.bias
    qkv = [(prefix + name, 3 * width // len(names.qkv)) for name in names.qkv]
    unbiased = [prefix + name for name in names.unbiased]
    dim = width // spec.heads
    rows = per_head_rows(spec.heads, dim) if names.per_head else None
    whole = spec.whole_norm_eps
    columns, padded = None, ops.padded_head_dim(dim)
    # Once, here; else every block pads every head, and cuts what comes of it. What is normed as a whole stays whole.
    if padded != dim and whole is None:
        places = (torch.arange(3 * width) if rows is None else rows).view(3 * spec.heads, dim)
        turning, values = places[: 2 * spec.heads], places[2 * spec.heads :]
        both = widened(turning, padded, halves=True), widened(values, padded, halves=False)
        rows = torch.cat(both).flatten()
        columns = widened(torch.arange(width).view(spec.heads, dim), padded, halves=False).flatten()
    mlp = MlpSpec(width=width, inter=spec.inter, out=width, activation=spec.activation, bias=bias)
    scales = [None if name is None else weights.take(prefix + name, (width,), torch.float32)
              for name in names.scales or (None, None)]  # fmt: skip
    of_query, of_key = names.whole_norms
    return VisionBlock(
        ops=ops,
        heads=spec.heads,
        scale=dim**-0.5,
        norm1=take_norm(ops, weights, spec.norm, prefix + names.norm1, width, spec.eps),
        qkv=take_fused(ops, weights, qkv, width, bias=bias and spec.qkv_bias, unbiased=unbiased, rows=rows),
        proj=take_linear(
            ops, weights, prefix + names.proj, width, width, bias=bias, columns=columns, scale=scales[0]
        ),
        norm2=take_norm(ops, weights, spec.norm, prefix + names.norm2, width, spec.eps),
        mlp=take_mlp(ops, weights, [prefix + name for name in names.up], prefix + names.down, mlp, scales[1]),
        whole_norms=None if whole is None else (
            take_norm(ops, weights, "rms", prefix + of_query, width, whole),
            take_norm(ops, weights, "rms", prefix + of_key, width, whole),
        ),
    )  # fmt: skip


def take_blocks(
    ops: Ops, weights: Weights, spec: BlockSpec, prefix: str, depth: int, names: BlockNames
) -> tuple[VisionBlock, ...]:
    """Blocks 0 to `depth` - 1 under `prefix` ("visual.blocks.")."""
    ops.check_heads(spec.heads, spec.heads, head_dim_of(spec.width, spec.heads))
    weights.check_blocks(prefix, depth)
    return tuple(take_block(ops, weights, spec, f"{prefix}{i}.", names) for i in range(depth))


def head_dim_of(width: int, heads: int) -> int:
    """Raises CheckpointError where the heads do not share the width of a tower."""
    if heads < 1 or width % heads:
        raise CheckpointError(f"config.json: {heads} heads do not share a width of {width}")
    return width // heads


def resample_positions(table: Tensor, side: int) -> Tensor:
    """A square grid of positions [n * n, width] on a grid of `side`, bicubic in float32; unchanged if n is `side`.

    Computed on the CPU, so that every device has the same positions.
    """
    n = round(table.shape[0] ** 0.5)
    if n == side:
        return table
    grid = (
        (table if table.device.type == "meta" else table.cpu()).float().view(1, n, n, -1).permute(0, 3, 1, 2)
    )  # [1, width, n, n]
    found = F.interpolate(grid, size=(side, side), mode="bicubic", align_corners=False)
    return found.permute(0, 2, 3, 1).reshape(side * side, -1).to(table.device)


def take_positions_between(weights: Weights, name: str, count: int, width: int) -> Callable[[int, int], Tensor]:
    """A square grid of positions [count, width] at the places of any other: the corners of both lie on each other.

    What it gives is float32 [h, w, width] of h rows and w columns, linear between the four around each place.
    """
    side = math.isqrt(count)
    if side * side != count:
        raise CheckpointError(f"config.json: {count} positions are no square")
    table = weights.take(name, (count, width)).float().view(side, side, width)

    def along(grid: Tensor, n: int) -> Tensor:
        """[side, ...] -> [n, ...]"""
        at = torch.arange(n, device=grid.device, dtype=torch.float32) * (side - 1) / max(n - 1, 1)
        low = at.floor()
        share = (at - low).view(-1, *[1] * (grid.dim() - 1))
        below = low.long()
        above = (below + 1).clamp(max=side - 1)
        return grid.index_select(0, below) * (1 - share) + grid.index_select(0, above) * share

    return lambda h, w: along(along(table, h).transpose(0, 1), w).transpose(0, 1)  # of Qwen3-VL


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along the first dimension; a single part is returned as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def in_groups(sizes: Iterable[int], most: int) -> list[list[int]]:
    """Indices of neighbours that have `most` rows together, or of one that has more alone."""
    groups: list[list[int]] = []
    rows = 0
    for i, size in enumerate(sizes):
        if not groups or rows + size > most:
            groups.append([])
            rows = 0
        groups[-1].append(i)
        rows += size
    return groups
