"""A vision tower with 2-D rotary positions: any grid, windows, several patches to one token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from model.net.mlp import Mlp, MlpSpec, take_mlp
from model.net.norm import Norm, take_norm
from model.net.rope import GridRope
from model.net.vision import (
    BlockNames,
    BlockSpec,
    PatchEmbed,
    PixelSpec,
    VisionBlock,
    head_dim_of,
    in_groups,
    joined,
    take_blocks,
    take_patch_embed,
    take_patch_embeds,
    take_positions_between,
)
from model.net.windows import in_order, inverse, window_order
from model.ops.base import Ops
from model.weights import Weights
from tokenization.chat.parts import Kind

FRAMES = 2  # of one temporal grid of a video
MAX_ROWS = 8192  # patches that go through the tower at a time, unless one temporal grid has more


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeVitSpec:
    block: BlockSpec
    depth: int
    patch: int  # side of a patch in pixels
    merge: int  # side of a token in patches
    out: int  # the decoder's hidden size
    pixels: Mapping[Kind, PixelSpec]  # of "image" and "video"
    window: int | None = None  # side of a window in tokens; None: every block sees whole temporal grids
    full_blocks: frozenset[int] = frozenset()  # with windows: the blocks that see whole temporal grids all the same
    theta: float = 1e4
    apart: bool = False  # the frequencies of columns lie between those of rows
    patch_bias: bool = False
    positions: int | None = None  # learned ones, a square of them, added to patches; None: none
    taps: tuple[int, ...] = ()  # blocks behind which tokens are made, too, in the order of their mergers on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeVitNames:
    """Tensor names on disk."""

    block: BlockNames  # after `blocks`.N
    patch: str = "patch_embed.proj"
    positions: str = "pos_embed.weight"
    first_norm: str | None = None  # before the first block; None: there is none
    blocks: str = "blocks"
    merger: tuple[str, str, str] = ("ln_q", "mlp.0", "mlp.2")  # after `merger`, and after `taps`.N
    taps: str = "deepstack_merger_list"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeVit:
    """The tower itself. Temporal grids do not see each other.

    Where blocks are tapped, each token's row goes on with what each of them gave, in the order of the blocks.
    """

    ops: Ops
    spec: RopeVitSpec
    frames: int  # in one row of patches: 1 of a still image, 2 of a video
    embed: PatchEmbed
    positions: Callable[[int, int], Tensor] | None  # (h, w) -> float32 [h, w, width], added to patches
    rope: GridRope
    first_norm: Norm | None
    blocks: tuple[VisionBlock, ...]
    merge: Mlp  # [patches, width] -> [tokens, out]
    taps: Mapping[int, Mlp]  # the same of what is behind these blocks

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def input_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """Of a medium of `grid` (t, h, w): rows (t, h/m, w/m, m, m), columns (channel, frame, y, x)."""
        t, h, w = grid
        return (t * h * w, 3 * self.frames * self.spec.patch**2)

    def __call__(self, arrays: Sequence[Tensor], grids: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """uint8 `input_shape`, grid (t, h, w) -> [t * h * w / merge^2, out * (1 + taps)], of each.

        Raises ValueError for what does not fit.
        """
        pieces: list[_Piece] = []  # temporal grids of one medium that go through the tower together
        for i, (pixels, grid) in enumerate(zip(arrays, grids, strict=True)):
            self._check(pixels, grid)
            _, h, w = grid
            together = max(1, MAX_ROWS // (h * w))
            pieces += [_Piece(i, part, h, w) for part in pixels.split(together * h * w)]
        found: list[list[Tensor]] = [[] for _ in grids]
        for group in in_groups([len(piece.pixels) for piece in pieces], MAX_ROWS):
            members = [pieces[i] for i in group]
            for piece, embeddings in zip(members, self._encode(members), strict=True):
                found[piece.item].append(embeddings)
        return [joined(parts) for parts in found]

    def _check(self, pixels: Tensor, grid: tuple[int, int, int]) -> None:
        """Raises ValueError for a misfit."""
        t, h, w = grid
        merge, what = self.spec.merge, "an image" if self.frames == 1 else "a video"
        fits = tuple(pixels.shape) == self.input_shape(grid) and not h % merge and not w % merge
        if not fits or t < 1 or (self.frames == 1 and t != 1):
            raise ValueError(f"pixels {list(pixels.shape)} do not fit {what} of {grid} patches")

    def _encode(self, pieces: "Sequence[_Piece]") -> list[Tensor]:
        """[tokens, out * (1 + taps)] of each"""
        spec = self.spec
        rows = [len(piece.pixels) for piece in pieces]
        x = self.embed(joined([piece.pixels for piece in pieces]))
        x = x if self.positions is None else x + joined([self._places(piece) for piece in pieces]).to(x.dtype)
        x = x if self.first_norm is None else self.first_norm(x)
        parts, cosines, sines = list(x.split(rows)), list[Tensor](), list[Tensor]()
        whole, windows = list[int](), list[int]()
        back: list[Tensor] = []  # of each piece [tokens of a grid]: where each token of the grid went
        for i, (_, pixels, h, w) in enumerate(pieces):
            t = len(pixels) // (h * w)
            cos, sin = self.rope.angles((1, h, w))  # [h * w, head_dim]
            whole += [h * w] * t
            if spec.window is not None:
                order, lengths = window_order(h // spec.merge, w // spec.merge, spec.window, x.device)
                back.append(inverse(order))
                windows += [length * spec.merge**2 for length in lengths] * t
                parts[i], cos, sin = (in_order(part, order, spec.merge**2) for part in (parts[i], cos, sin))
            cosines.append(cos.repeat(t, 1))
            sines.append(sin.repeat(t, 1))
        angles = self.ops.rotary_angles(joined(cosines), joined(sines))
        x = joined(parts) if back else x
        tapped = list[Tensor]()
        for i, block in enumerate(self.blocks):
            x = block(x, angles, windows if back and i not in spec.full_blocks else whole)
            if i in self.taps:
                tapped.append(self.taps[i](x))
        x = self.merge(x)  # [tokens, out]
        x = torch.cat([x, *tapped], dim=1) if tapped else x
        tokens = list(x.split([n // spec.merge**2 for n in rows]))
        for i, places in enumerate(back):
            tokens[i] = tokens[i].unflatten(0, (-1, len(places))).index_select(1, places).flatten(0, 1)
        return tokens

    def _places(self, piece: "_Piece") -> Tensor:
        """float32 [patches, width], in merge-block order, the same for each temporal grid."""
        assert self.positions is not None
        m, h, w = self.spec.merge, piece.h, piece.w
        blocks = self.positions(h, w).view(h // m, m, w // m, m, -1).transpose(1, 2)
        return blocks.reshape(h * w, -1).repeat(len(piece.pixels) // (h * w), 1)


class _Piece(NamedTuple):
    """Some temporal grids of one medium."""

    item: int  # of the call
    pixels: Tensor  # uint8 [t * h * w, columns]
    h: int
    w: int


def build_rope_vit(
    ops: Ops, weights: Weights, spec: RopeVitSpec, prefix: str, names: RopeVitNames
) -> Mapping[str, RopeVit]:
    """Take a tower's tensors under `prefix` ("visual."): by kind, "image" and "video" over the same blocks."""
    width = spec.block.width
    kernel = (width, 3, FRAMES, spec.patch, spec.patch)
    still, moving = take_patch_embeds(
        ops, weights, f"{prefix}{names.patch}", kernel, spec.pixels["image"], spec.pixels["video"], bias=spec.patch_bias
    )
    positions = None
    if spec.positions is not None:
        positions = take_positions_between(weights, f"{prefix}{names.positions}", spec.positions, width)
    merge = _take_merger(ops, weights, spec, names, f"{prefix}merger.", normed=width)
    taps = {
        block: _take_merger(ops, weights, spec, names, f"{prefix}{names.taps}.{i}.", normed=spec.merge**2 * width)
        for i, block in enumerate(spec.taps)
    }
    tower = replace(_build_tower(ops, weights, spec, prefix, names, still, merge), positions=positions, taps=taps)
    return {"image": tower, "video": replace(tower, frames=FRAMES, embed=moving)}


def _take_merger(
    ops: Ops, weights: Weights, spec: RopeVitSpec, names: RopeVitNames, prefix: str, *, normed: int
) -> Mlp:
    """normed: the width that the norm sees: of a patch, or of a token's patches side by side."""
    norm_name, up, down = (prefix + name for name in names.merger)
    wide = spec.merge**2 * spec.block.width
    norm = take_norm(ops, weights, spec.block.norm, norm_name, normed, spec.block.eps)
    two = MlpSpec(width=wide, inter=wide, out=spec.out, activation="gelu", bias=True)
    return _merging(norm, take_mlp(ops, weights, [up], down, two), spec, normed=normed)


def _merging(norm: Norm, mlp: Mlp, spec: RopeVitSpec, *, normed: int) -> Mlp:
    """[patches, width] -> [tokens, out]: the norm, then a token's patches side by side through the MLP."""
    wide = spec.merge**2 * spec.block.width
    return lambda x: mlp(norm(x.view(-1, normed)).view(-1, wide))


def build_still_vit(
    ops: Ops, weights: Weights, spec: RopeVitSpec, prefix: str, names: RopeVitNames, norm: Norm, merger: Mlp
) -> RopeVit:
    """A tower for pictures alone, whose patches go through a Conv2d. norm, merger: what comes behind its blocks."""
    kernel = (spec.block.width, 3, spec.patch, spec.patch)
    embed = take_patch_embed(ops, weights, f"{prefix}{names.patch}.weight", kernel, spec.pixels["image"])
    return _build_tower(ops, weights, spec, prefix, names, embed, _merging(norm, merger, spec, normed=spec.block.width))


def _build_tower(
    ops: Ops,
    weights: Weights,
    spec: RopeVitSpec,
    prefix: str,
    names: RopeVitNames,
    embed: PatchEmbed,
    merge: Mlp,
) -> RopeVit:
    """Build the tower for still images."""
    block, first_norm = spec.block, None
    if names.first_norm is not None:
        first_norm = take_norm(ops, weights, block.norm, f"{prefix}{names.first_norm}", block.width, block.eps)
    head_dim = head_dim_of(block.width, block.heads)
    blocks = take_blocks(ops, weights, block, f"{prefix}{names.blocks}.", spec.depth, names.block)
    return RopeVit(
        ops=ops,
        spec=spec,
        frames=1,
        embed=embed,
        positions=None,
        rope=GridRope(
            head_dim=head_dim,
            padded=ops.padded_head_dim(head_dim),
            merge=spec.merge,
            device=ops.device,
            theta=spec.theta,
            apart=spec.apart,
        ),
        first_norm=first_norm,
        blocks=blocks,
        merge=merge,
        taps={},
    )
