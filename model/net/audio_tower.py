"""An encoder of log-mel frames, of a whole sound or chunk by chunk: two convolutions, then pre-norm blocks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from model.net.linear_weights import take_linear
from model.net.norm import Norm, take_norm
from model.net.vision import BlockNames, BlockSpec, VisionBlock, in_groups, joined, take_blocks
from model.ops.base import Linear, Ops
from model.weights import Weights

MAX_ROWS = 8192  # states that go through a chunked tower at a time, unless one chunk has more
_TIMESCALE = 10000.0
_REACH = 3  # frames that one output of either convolution sees
_BLOCK = BlockNames(
    norm1="self_attn_layer_norm", qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    unbiased=("self_attn.k_proj",), proj="self_attn.out_proj", norm2="final_layer_norm", up=("fc1",), down="fc2",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTowerSpec:
    mels: int
    block: BlockSpec
    depth: int
    out: int  # the decoder's hidden size
    positions: int  # states that the table of positions has
    chunk: int | None  # frames that are convolved and attended to alone; None: the whole sound
    context: int  # frames of the padding after the sound that the convolutions still see; 0 with chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTowerNames:
    """Tensor names on disk that differ between towers."""

    norm: str
    proj: str  # without the tower's prefix
    positions: str | None = None  # None: not on disk, but sinusoids


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTower:
    spec: AudioTowerSpec
    conv1: Linear  # three frames side by side -> width
    conv2: Linear  # three states side by side -> width
    gelu: Callable[[Tensor], Tensor]
    positions: Tensor  # [positions, width]
    blocks: tuple[VisionBlock, ...]
    norm: Norm
    proj: Linear

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def input_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """Of a sound of `grid` (1, 1, frames): its frames, then those of `spec.context`."""
        return (grid[2] + self.spec.context, self.spec.mels)

    def __call__(self, arrays: Sequence[Tensor], grids: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """float32 `input_shape`, grid (1, 1, frames) -> [ceil(frames / 2) // 2, out], of each.

        Raises ValueError for others.
        """
        spec = self.spec
        pieces: list[_Chunks] = []
        for i, (mel, grid) in enumerate(zip(arrays, grids, strict=True)):
            self._check(mel, grid)
            if spec.chunk is None:
                # After the frames that the table reaches the convolutions see zeros, as after every end.
                pieces.append(_Chunks(i, mel[None, : 2 * spec.positions], grid[2]))
            else:
                pieces += [_Chunks(i, part, part.shape[1]) for part in _cut(mel, spec.chunk)]
        sizes = [piece.mel.shape[0] * piece.states for piece in pieces]
        found: list[list[Tensor]] = [[] for _ in grids]
        for group in in_groups(sizes, MAX_ROWS):
            states = self._encode([pieces[i] for i in group])
            for i, part in zip(group, states.split([sizes[i] for i in group]), strict=True):
                found[pieces[i].item].append(part)
        return [self._tokens(joined(parts)) for parts in found]

    def _check(self, mel: Tensor, grid: tuple[int, int, int]) -> None:
        """Raises ValueError for a misfit."""
        spec, (t, h, frames) = self.spec, grid
        if (t, h) != (1, 1) or frames < 1 or tuple(mel.shape) != self.input_shape(grid):
            raise ValueError(f"log-mel frames {list(mel.shape)} do not fit an audio of {grid}")
        if mel.dtype != self.dtype:
            raise ValueError(f"log-mel frames are {mel.dtype}, not {self.dtype}")
        if spec.chunk is None and frames > 2 * spec.positions:
            raise ValueError(f"an audio has {frames} frames, this tower hears {2 * spec.positions}")

    def _tokens(self, states: Tensor) -> Tensor:
        """Of one sound: [states, width] -> [states // 2, out]"""
        pairs = states[: states.shape[0] // 2 * 2].unflatten(0, (-1, 2))  # [tokens, 2, width]
        return self.proj(self.norm(pairs.mean(1))) if pairs.shape[0] else states.new_empty((0, self.spec.out))

    def _encode(self, pieces: "Sequence[_Chunks]") -> Tensor:
        """-> [states of all of them, width]; each chunk is alone"""
        x = joined([self._convolve(piece.mel, piece.states) for piece in pieces])
        segments = [length for piece in pieces for length in [piece.states] * piece.mel.shape[0]]
        for block in self.blocks:
            x = block(x, None, segments)
        return x

    def _convolve(self, mel: Tensor, length: int) -> Tensor:
        """float32 [n, frames and context, mels] -> [n * length, width]"""
        x = F.pad(mel.to(self.positions.dtype), (0, 0, 1, 1))
        x = self.gelu(self.conv1(_triples(x, 1)))  # [n, frames and context, width]
        # The second convolution begins one state early, and ends with the last pair that has a valid frame.
        x = F.pad(x[:, : 2 * length], (0, 0, 1, max(0, 2 * length - x.shape[1])))
        x = self.gelu(self.conv2(_triples(x, 2))) + self.positions[:length]  # [n, length, width]
        return x.flatten(0, 1)


class _Chunks(NamedTuple):
    """Chunks of one length of one sound."""

    item: int  # of the call
    mel: Tensor  # float32 [n, frames and context, mels]
    frames: int

    @property
    def states(self) -> int:
        """Of each of them."""
        return (self.frames + 1) // 2


def _cut(mel: Tensor, chunk: int) -> list[Tensor]:
    """All full chunks, as many together as MAX_ROWS allows, then the short one: [frames, mels] -> [n, frames, mels]"""
    full = mel.shape[0] // chunk * chunk
    together = max(1, 2 * MAX_ROWS // chunk)
    parts = [part.unflatten(0, (-1, chunk)) for part in mel[:full].split(together * chunk) if full]
    return [*parts, mel[None, full:]] if full < mel.shape[0] else parts


def _triples(x: Tensor, stride: int) -> Tensor:
    """Three neighbours side by side, each `stride` rows: [n, rows, width] -> [n, (rows - 3) // stride + 1, 3 width]"""
    last = x.shape[1] - _REACH
    return torch.cat([x[:, i : last + i + 1 : stride] for i in range(_REACH)], dim=-1)


def build_audio_tower(
    ops: Ops, weights: Weights, spec: AudioTowerSpec, prefix: str, names: AudioTowerNames
) -> AudioTower:
    """Take a tower's tensors under `prefix` ("audio_tower."), and its projection under `names.proj`."""
    block = spec.block
    width, shape = block.width, (spec.positions, block.width)
    blocks = take_blocks(ops, weights, block, f"{prefix}layers.", spec.depth, _BLOCK)
    table = _sinusoids(*shape) if names.positions is None else weights.take(f"{prefix}{names.positions}.weight", shape)
    return AudioTower(
        spec=spec,
        conv1=_take_conv(ops, weights, f"{prefix}conv1", width, spec.mels),
        conv2=_take_conv(ops, weights, f"{prefix}conv2", width, width),
        gelu=ops.gelu,
        positions=table.to(ops.device, ops.dtype),
        blocks=blocks,
        norm=take_norm(ops, weights, block.norm, f"{prefix}{names.norm}", width, block.eps),
        proj=take_linear(ops, weights, names.proj, spec.out, width, bias=True),
    )


def _take_conv(ops: Ops, weights: Weights, name: str, n_out: int, n_in: int) -> Linear:
    """A Conv1d kernel [n_out, n_in, 3] as a linear over three neighbours side by side."""
    kernel = weights.take(f"{name}.weight", (n_out, n_in, _REACH))
    return ops.linear(kernel.transpose(1, 2).flatten(1).contiguous(), weights.take(f"{name}.bias", (n_out,)))


def _sinusoids(rows: int, width: int) -> Tensor:
    """float32 [rows, width]: sines, then cosines, of timescales from 1 to 10000 in equal ratios."""
    step = math.log(_TIMESCALE) / (width // 2 - 1)
    angles = torch.arange(rows)[:, None] * torch.exp(-step * torch.arange(width // 2).float())
    return torch.cat([angles.sin(), angles.cos()], dim=1)
