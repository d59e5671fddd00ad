"""A vision tower with 2-D rotary positions: any grid, windows, several patches to one token."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from model.net.linear import take_fused, take_linear
from model.net.norm import Norm, take_layer_norm, take_rms_norm
from model.net.rope import GridRope
from model.net.vision import Mlp, PatchEmbed, PixelSpec, VisionBlock, head_dim_of, take_patch_embed, take_patch_embeds
from model.ops.base import Linear, Ops
from model.weights import Weights
from tokenization.chat.parts import Kind

FRAMES = 2  # of one temporal grid of a video
MAX_ROWS = 8192  # patches that go through the tower at a time, unless one temporal grid has more


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeVitSpec:
    width: int
    depth: int
    heads: int
    inter: int
    patch: int  # side of a patch in pixels
    merge: int  # side of a token in patches
    out: int  # the decoder's hidden size
    pixels: Mapping[Kind, PixelSpec]  # of "image" and "video"
    blocks: Literal["plain", "gated"] = "plain"  # LayerNorm and quick-GELU, or RMSNorm and a gated SiLU
    window: int | None = None  # side of a window in tokens; None: every block sees whole temporal grids
    full_blocks: frozenset[int] = frozenset()  # with windows: the blocks that see whole temporal grids all the same
    qkv: tuple[str, ...] = ("attn.qkv",)  # how queries, keys and values lie on disk: fused, or one by one
    gate: Literal["silu", "gelu"] = "silu"  # of gated blocks
    bias: bool = True  # of the linears of a block
    eps: float = 1e-6
    theta: float = 1e4
    apart: bool = False  # the frequencies of columns lie between those of rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeVitNames:
    """Tensor names on disk, those of a block after `blocks`.N."""

    patch: str = "patch_embed.proj.weight"
    first_norm: str | None = None  # before the first block; None: there is none
    blocks: str = "blocks"
    norm1: str = "norm1"
    proj: str = "attn.proj"
    norm2: str = "norm2"
    mlp: str = "mlp"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeVit:
    """Temporal grids do not see each other."""

    ops: Ops
    spec: RopeVitSpec
    frames: int  # in one row of patches: 1 of a still image, 2 of a video
    embed: PatchEmbed
    rope: GridRope
    first_norm: Norm | None
    blocks: tuple[VisionBlock, ...]
    norm: Norm
    merger: Callable[[Tensor], Tensor]

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def input_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """Of a medium of `grid` (t, h, w): rows (t, h/m, w/m, m, m), columns (channel, frame, y, x)."""
        t, h, w = grid
        return (t * h * w, 3 * self.frames * self.spec.patch**2)

    def __call__(self, pixels: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """uint8 `input_shape`, grid (t, h, w) -> [t * h * w / merge^2, out]. Raises ValueError for a misfit."""
        t, h, w = grid
        merge, what = self.spec.merge, "an image" if self.frames == 1 else "a video"
        fits = tuple(pixels.shape) == self.input_shape(grid) and not h % merge and not w % merge
        if not fits or t < 1 or (self.frames == 1 and t != 1):
            raise ValueError(f"pixels {list(pixels.shape)} do not fit {what} of {grid} patches")
        together = max(1, MAX_ROWS // (h * w))
        parts = [self._encode(part, h, w) for part in pixels.split(together * h * w)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _encode(self, pixels: Tensor, h: int, w: int) -> Tensor:
        """Some temporal grids: uint8 [t * h * w, columns] -> [t * h * w / merge^2, out]"""
        spec, t = self.spec, pixels.shape[0] // (h * w)
        cos, sin = self.rope.angles((1, h, w))  # [h * w, head_dim]
        x = self.embed(pixels)
        x = x if self.first_norm is None else self.first_norm(x)
        whole = windows = [h * w] * t
        back: Tensor | None = None  # [tokens of a grid]: where each token of the grid went
        if spec.window is not None:
            order, lengths = window_order(h // spec.merge, w // spec.merge, spec.window, x.device)
            back = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=x.device))
            windows = [length * spec.merge**2 for length in lengths] * t
            x, cos, sin = (self._sorted(part, order) for part in (x, cos, sin))
        angles = self.ops.rotary_angles(cos.repeat(t, 1), sin.repeat(t, 1))
        for i, block in enumerate(self.blocks):
            x = block(x, angles, whole if i in spec.full_blocks else windows)
        x = self.merger(self.norm(x).view(-1, spec.merge**2 * spec.width))  # [t * tokens, out]
        return x if back is None else x.unflatten(0, (t, -1)).index_select(1, back).flatten(0, 1)

    def _sorted(self, x: Tensor, order: Tensor) -> Tensor:
        """Rows of whole temporal grids [n, width] with each grid's tokens, merge^2 rows each, in this order."""
        tokens = x.view(-1, order.shape[0], self.spec.merge**2 * x.shape[1])
        return tokens.index_select(1, order).view(x.shape)


def build_rope_vit(ops: Ops, weights: Weights, spec: RopeVitSpec, prefix: str) -> Mapping[str, RopeVit]:
    """Take a tower's tensors under `prefix` ("visual."): by kind, "image" and "video" over the same blocks."""
    names = RopeVitNames()
    kernel = (spec.width, 3, FRAMES, spec.patch, spec.patch)
    wide = spec.merge**2 * spec.width
    first = take_linear(ops, weights, f"{prefix}merger.mlp.0", wide, wide, bias=True)
    second = take_linear(ops, weights, f"{prefix}merger.mlp.2", spec.out, wide, bias=True)
    name = f"{prefix}{names.patch}"
    still, moving = take_patch_embeds(ops, weights, name, kernel, spec.pixels["image"], spec.pixels["video"])
    norm = _taker(spec)(ops, weights, f"{prefix}merger.ln_q", spec.width, spec.eps)
    merger = _two_layers(first, ops.gelu, second)
    tower = _build_tower(ops, weights, spec, prefix, names, still, norm, merger)
    return {"image": tower, "video": replace(tower, frames=FRAMES, embed=moving)}


def build_still_vit(
    ops: Ops,
    weights: Weights,
    spec: RopeVitSpec,
    prefix: str,
    names: RopeVitNames,
    norm: Norm,
    merger: Callable[[Tensor], Tensor],
) -> RopeVit:
    """A tower for pictures alone, whose patches go through a Conv2d. norm, merger: what comes behind its blocks."""
    kernel = (spec.width, 3, spec.patch, spec.patch)
    embed = take_patch_embed(ops, weights, f"{prefix}{names.patch}", kernel, spec.pixels["image"])
    return _build_tower(ops, weights, spec, prefix, names, embed, norm, merger)


def _build_tower(
    ops: Ops,
    weights: Weights,
    spec: RopeVitSpec,
    prefix: str,
    names: RopeVitNames,
    embed: PatchEmbed,
    norm: Norm,
    merger: Callable[[Tensor], Tensor],
) -> RopeVit:
    """For still images."""
    head_dim = head_dim_of(spec.width, spec.heads)
    ops.check_heads(spec.heads, spec.heads, head_dim)
    weights.check_blocks(f"{prefix}{names.blocks}.", spec.depth)
    first_norm: Norm | None = None
    if names.first_norm is not None:
        first_norm = _taker(spec)(ops, weights, f"{prefix}{names.first_norm}", spec.width, spec.eps)
    blocks = [f"{prefix}{names.blocks}.{i}." for i in range(spec.depth)]
    return RopeVit(
        ops=ops,
        spec=spec,
        frames=1,
        embed=embed,
        rope=GridRope(head_dim=head_dim, merge=spec.merge, device=ops.device, theta=spec.theta, apart=spec.apart),
        first_norm=first_norm,
        blocks=tuple(_build_block(ops, weights, spec, block, names) for block in blocks),
        norm=norm,
        merger=merger,
    )


def _taker(spec: RopeVitSpec) -> Callable[[Ops, Weights, str, int, float], Norm]:
    return take_layer_norm if spec.blocks == "plain" else take_rms_norm


def _build_block(ops: Ops, weights: Weights, spec: RopeVitSpec, prefix: str, names: RopeVitNames) -> VisionBlock:
    take_norm = _taker(spec)
    take_mlp = _plain_mlp if spec.blocks == "plain" else _gated_mlp
    qkv = [(prefix + name, 3 * spec.width // len(spec.qkv)) for name in spec.qkv]
    return VisionBlock(
        ops=ops,
        heads=spec.heads,
        norm1=take_norm(ops, weights, f"{prefix}{names.norm1}", spec.width, spec.eps),
        qkv=take_fused(ops, weights, qkv, spec.width, bias=spec.bias),
        proj=take_linear(ops, weights, f"{prefix}{names.proj}", spec.width, spec.width, bias=spec.bias),
        norm2=take_norm(ops, weights, f"{prefix}{names.norm2}", spec.width, spec.eps),
        mlp=take_mlp(ops, weights, spec, f"{prefix}{names.mlp}."),
    )


def _plain_mlp(ops: Ops, weights: Weights, spec: RopeVitSpec, prefix: str) -> Mlp:
    first = take_linear(ops, weights, f"{prefix}fc1", spec.inter, spec.width, bias=spec.bias)
    second = take_linear(ops, weights, f"{prefix}fc2", spec.width, spec.inter, bias=spec.bias)
    return _two_layers(first, ops.quick_gelu, second)


def _gated_mlp(ops: Ops, weights: Weights, spec: RopeVitSpec, prefix: str) -> Mlp:
    parts = [(f"{prefix}gate_proj", spec.inter), (f"{prefix}up_proj", spec.inter)]
    gate_up = take_fused(ops, weights, parts, spec.width, bias=spec.bias)
    down = take_linear(ops, weights, f"{prefix}down_proj", spec.width, spec.inter, bias=spec.bias)
    return _two_layers(gate_up, ops.swiglu if spec.gate == "silu" else _gelu_gate(ops), down)


def _gelu_gate(ops: Ops) -> Callable[[Tensor], Tensor]:
    def gated(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return ops.gelu(gate) * up

    return gated


def _two_layers(first: Linear, activation: Callable[[Tensor], Tensor], second: Linear) -> Callable[[Tensor], Tensor]:
    return lambda x: second(activation(first(x)))


def window_order(rows: int, columns: int, side: int, device: torch.device) -> tuple[Tensor, tuple[int, ...]]:
    """(order int64 [rows * columns], lengths) of a row-by-row grid's windows; those at its far edges may be smaller.

    Windows do not see each other, so their order is free: neighbours of one length are computed together.
    """
    tokens = torch.arange(rows * columns, device=device).view(rows, columns)
    top, left = rows // side * side, columns // side * side  # where the smaller windows begin
    parts = [
        _windows(tokens[:top, :left], side, side),
        _windows(tokens[:top, left:], side, columns - left),
        _windows(tokens[top:, :left], rows - top, side),
        _windows(tokens[top:, left:], rows - top, columns - left),
    ]
    parts.sort(key=lambda part: part.shape[1], reverse=True)
    order = torch.cat([part.flatten() for part in parts])
    return order, tuple(length for part in parts for length in [part.shape[1]] * part.shape[0])


def _windows(tokens: Tensor, height: int, width: int) -> Tensor:
    """A part of the grid that windows of one size tile, window by window: [windows, height * width]"""
    if tokens.numel() == 0:
        return tokens.new_empty((0, height * width))
    windows: Tensor = tokens.unflatten(1, (-1, width)).unflatten(0, (-1, height)).transpose(1, 2)
    return windows.flatten(0, 1).flatten(1)
