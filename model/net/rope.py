"""Rotary angles: turns positions into the cos and sin that layers take."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.checkpoint import REQUIRED, CheckpointError, ConfigSection
from model.forward_batch import ForwardBatch

_DOUBLINGS = 32  # of a prompt over the trained length: more than int32 lengths can hold


def read_theta(text: ConfigSection, default: float, kinds: Collection[str] = ("default",)) -> float:
    """By `rope_theta` and `rope_scaling` (hub) or `rope_parameters` (transformers 5). Raises CheckpointError."""
    rope = rope_section(text)
    rope.expect("rope_type" if "rope_type" in rope else "type", kinds, "default")
    return rope.positive("rope_theta", text.positive("rope_theta", default))


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """Angles for more positions than a model was trained with (YaRN, arXiv 2309.00071)."""

    factor: float  # by which what turns slowly turns still more slowly
    trained_length: int
    fast: float  # turns within the trained length from which on a frequency stays as it is
    slow: float  # and up to which it is divided by the whole factor
    in_whole_dims: bool  # whether the dims between which it changes are rounded outwards
    scale: float  # of cos and sin

    def of(self, inv_freq: Tensor, theta: float) -> Tensor:
        """inv_freq: float32 [turned / 2], as without YaRN."""
        dims = 2 * len(inv_freq)
        first, last = (dims * math.log(self.trained_length / (turns * 2 * math.pi)) / (2 * math.log(theta))
                       for turns in (self.fast, self.slow))  # fmt: skip
        if self.in_whole_dims:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        steps = torch.arange(len(inv_freq), dtype=torch.float32) - first
        slower = (steps / (last - first if last != first else 0.001)).clamp(0, 1)
        return inv_freq / self.factor * slower + inv_freq * (1 - slower)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    theta: float
    rows: tuple[int, ...] | None = None  # of each of the head_dim / 2 frequencies the row of positions; None: the first
    yarn: Yarn | None = None


def read_yarn(text: ConfigSection) -> Yarn | None:
    """By `rope_scaling` (hub) or `rope_parameters` (transformers 5); None: another kind. Raises CheckpointError."""
    rope = rope_section(text)
    if rope.read(str, "rope_type" if "rope_type" in rope else "type", "default") != "yarn":
        return None
    factor = rope.positive("factor")
    own, of_all = (rope.read(float, key, 0.0) for key in ("mscale", "mscale_all_dim"))
    scale = _yarn_scale(factor, own) / _yarn_scale(factor, of_all) if own and of_all else _yarn_scale(factor, 1.0)
    return Yarn(
        factor=factor,
        trained_length=rope.count("original_max_position_embeddings", text.count("max_position_embeddings", 32768)),
        fast=rope.positive("beta_fast", 32.0),
        slow=rope.positive("beta_slow", 1.0),
        in_whole_dims=rope.read(bool, "truncate", True),
        scale=rope.positive("attention_factor", scale),
    )


def _yarn_scale(factor: float, share: float) -> float:
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_section(text: ConfigSection) -> ConfigSection:
    return text.child("rope_scaling").merged(text.child("rope_parameters"))


def read_sections(text: ConfigSection, head_dim: int, default: Sequence[float] = REQUIRED) -> tuple[int, ...]:
    """How many of the head_dim / 2 frequencies follow time, height and width. Raises CheckpointError."""
    rope = rope_section(text)
    sections = tuple(map(int, rope.numbers("mrope_section", default)))
    if min(sections) < 0 or sum(sections) != head_dim // 2:
        raise CheckpointError(
            f"{rope.location}: mrope_section is {list(sections)}; three sections must add up to {head_dim // 2}"
        )
    return sections


def in_blocks(sections: Sequence[int]) -> tuple[int, ...]:
    """The row that each frequency follows: first all of time, then all of height, then all of width."""
    return tuple(row for row, n in enumerate(sections) for _ in range(n))


def in_turns(sections: Sequence[int]) -> tuple[int, ...]:
    """The same in turns (time, height, width, time, ...); where a row has no more, time goes on in its place."""
    turns = [i % 3 for i in range(sum(sections))]  # of Qwen3-VL
    return tuple(row if i < 3 * sections[row] else 0 for i, row in enumerate(turns))


class Rope(Protocol):
    def angles(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [T, head_dim], both halves equal."""

    def variant(self, prompt_len: int) -> int:
        """Prompts of one variant have the same angles at the same positions.

        Beside a token's id or embedding and its position it is all that its key and value depend on.
        """


class MRope:
    """Three-row positions (time, height, width), each driving some of the frequencies. 1-D is three equal rows."""

    def __init__(
        self, spec: RopeSpec, *, head_dim: int, device: torch.device, dtype: torch.dtype, turned: int | None = None
    ) -> None:
        """turned: how many dims of a head turn, in heads that lie as `turned_order` says; the others stand still."""
        rows = spec.rows or (0,) * (head_dim // 2)
        turned = head_dim if turned is None else turned
        exponents = torch.arange(0, turned, 2, dtype=torch.float32) / turned
        inv_freq = 1.0 / spec.theta**exponents
        inv_freq = inv_freq if spec.yarn is None else spec.yarn.of(inv_freq, spec.theta)
        still = torch.zeros((head_dim - turned) // 2)
        self._inv_freq = torch.cat([inv_freq, still]).repeat(2).to(device)  # float32 [head_dim]
        self._scale = 1.0 if spec.yarn is None else spec.yarn.scale
        self._row_of = torch.tensor([*rows, *rows], device=device)  # int64 [head_dim]
        self._dtype = dtype

    def angles(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [T, head_dim]: made in float32, both halves equal, then cast."""
        angles = batch.positions.float().index_select(0, self._row_of).T * self._inv_freq  # [T, head_dim]
        return _cos_sin(angles, self._dtype, self._scale)

    def variant(self, prompt_len: int) -> int:
        return 0


def turned_order(head_dim: int, turned: int) -> Tensor:
    """int64 [head_dim]: an order of a head's dims in which turning the whole head turns its first `turned` dims alone.

    On disk dim i turns with i + turned / 2; whole heads turn i with i + head_dim / 2. A product of two heads does not
    mind their order, so it is changed once, in the weights. Both numbers are even.
    """
    # Fuyu (Persimmon): half of each head turns.
    turns, stays = torch.arange(head_dim).split([turned, head_dim - turned])
    first, second = zip(turns.view(2, -1), stays.view(2, -1), strict=True)
    return torch.cat([*first, *second])


class NtkRope:  # of Qwen-VL
    """One-row positions; the longer a sequence's prompt, the larger its base (dynamic NTK).

    alpha: 2^(n + 1) - 1 after n doublings of the trained length, by the prompt alone: a sequence never changes it.
    """

    def __init__(self, *, head_dim: int, theta: float, trained_length: int | None, device: torch.device) -> None:
        """trained_length: prompts above it get a larger base; None: one base for all."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        alphas = [2 ** (n + 1) - 1 for n in range(_DOUBLINGS)]
        bases = [theta * alpha ** (head_dim / (head_dim - 2)) for alpha in alphas]
        self._inv_freq = torch.stack([1.0 / base**exponents for base in bases]).repeat(1, 2).to(device)
        self._trained_length = trained_length

    def angles(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """float32 (cos, sin), each [T, head_dim], by the first row of the positions."""
        rows = [self.variant(n) for n in batch.prompt_lens]
        if len(set(rows)) == 1:
            inv_freq = self._inv_freq[rows[0]]  # [head_dim]
        else:
            of_token = torch.from_numpy(np.repeat(np.array(rows), np.array(batch.q_lens)))
            inv_freq = self._inv_freq.index_select(0, _sent(of_token, self._inv_freq.device))
        return _cos_sin(batch.positions[0].float()[:, None] * inv_freq, torch.float32)

    def variant(self, prompt_len: int) -> int:
        """How often the trained length must be doubled to hold the prompt; in integers, so exact at the borders."""
        return ((prompt_len - 1) // self._trained_length).bit_length() if self._trained_length else 0


def _cos_sin(angles: Tensor, dtype: torch.dtype, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """float32 [T, head_dim] -> (cos, sin), in one tensor, so that one launch casts or copies both."""
    both = angles.new_empty((2, *angles.shape))
    torch.cos(angles, out=both[0])
    torch.sin(angles, out=both[1])
    if scale != 1.0:
        both.mul_(scale)
    cos, sin = both.to(dtype).unbind(0)
    return cos, sin


def _sent(host: Tensor, device: torch.device) -> Tensor:
    """A copy on the device that nobody waits for; what is small and differs within a batch does not pay for packing."""
    return (host if device.type in ("cpu", "meta") else host.pin_memory()).to(device, non_blocking=True)


class LogN:  # of Qwen-VL
    """Factors of queries at positions past the trained length: log(seen) / log(trained)."""

    def __init__(self, *, trained_length: int, longest: int, device: torch.device) -> None:
        seen = range(1, longest + 1)
        scales = [math.log(n, trained_length) if n > trained_length else 1.0 for n in seen]
        self._scales = torch.tensor(scales, dtype=torch.float32, device=device)  # [longest]
        self._trained_length = trained_length

    def scales(self, batch: ForwardBatch) -> Tensor | None:
        """float32 [T], or None where no sequence of the step is longer than the trained length."""
        if max(batch.kv_lens) <= self._trained_length:
            return None
        return self._scales.index_select(0, batch.positions[0])


class GridRope:
    def __init__(
        self, *, head_dim: int, padded: int, merge: int, device: torch.device, theta: float = 1e4, apart: bool = False
    ) -> None:
        """head_dim: a multiple of 4; padded: what `widened` makes of it in halves; merge: side of a token in patches.

        apart: each frequency of the columns lies between two of the rows; else both have the same ones.
        """
        half = head_dim // 2
        steps = torch.arange(0, half, 2, dtype=torch.float32)
        exponents = torch.stack([steps, steps + apart]) / half
        self._inv_freq = (1.0 / theta**exponents).to(device)  # float32 [2, head_dim / 4]: of rows, of columns
        self._merge = merge
        self._still = (padded - head_dim) // 2  # dims of each half that do not turn

    def angles(self, grid: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        """grid (t, h, w) in patches -> float32 (cos, sin), each [t * h * w, padded], rows in merge-block order."""
        t, h, w = grid
        m, device = self._merge, self._inv_freq.device
        rows = torch.arange(h, device=device).view(h // m, 1, m, 1).expand(h // m, w // m, m, m)
        columns = torch.arange(w, device=device).view(1, w // m, 1, m).expand(h // m, w // m, m, m)
        places = torch.stack([rows.flatten(), columns.flatten()], dim=1).float()  # [h * w, 2]
        angles = (places[:, :, None] * self._inv_freq).flatten(1)  # [h * w, head_dim / 2]
        angles = F.pad(angles, (0, self._still)) if self._still else angles
        angles = angles.repeat(t, 2)  # [t * h * w, padded]
        return angles.cos(), angles.sin()
