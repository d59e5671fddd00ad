"""The operations that networks are written in, and what each means.

Tokens are packed: `[tokens, heads, dim]`, sequence after sequence, never padded. Lengths are host ints, so nothing is
read back from the device. Unless said otherwise a result is new, contiguous and of the first argument's dtype.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from model.ops.collectives import Ranks

Linear = Callable[[Tensor], Tensor]
"""A prepared weight: x [..., in] -> x @ weight.T + bias, [..., out]. x has at least one row."""


class PagedAttention(Protocol):
    """Causal attention of one step's new tokens over the paged cache, prepared for all layers by `plan_attention`."""

    def __call__(self, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        """query [T, heads, head_dim], rows in batch order -> [T, heads, head_dim]; this step's `write_kv` is done.

        The caches are one layer's, as `Ops.kv_cache` made them. Query head i reads key-value head i // (heads /
        kv_heads). Row j of a sequence with q new and kv cached tokens sees its cached tokens 0 .. kv - q + j
        (right-aligned causal). Scale head_dim ** -0.5, softmax in float32.
        """


class GraphAttention(PagedAttention, Protocol):
    """One new token of each sequence over the paged cache, as a captured graph runs it again and again.

    What it computes with besides its arguments (outputs, workspace) lives as long as it does, and the graph must not
    outlive it. While it is captured each sequence has one cached token.
    """

    @property
    def operator(self) -> str:
        """The name of the operator that each call captures, as the device's module for graphs records it."""

    def update(self, kv_lens: Sequence[int]) -> dict[str, list[int]]:
        """What the captured calls must be given for each replay: host lists, by the names of the operator's arguments.

        kv_lens: tokens of each sequence in the cache, the new one included.
        """


class Ops(Protocol):
    @property
    def device(self) -> torch.device:
        """Where every tensor argument lies."""

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache: float32 or bfloat16 (float16 on a device)."""

    @property
    def ranks(self) -> Ranks:
        """This process among those that hold a part of the model each; `ALONE` where it holds all."""

    @property
    def prepacks(self) -> bool:
        """Whether `linear` copies the weight into a layout of its own: what a caller keeps of it is there twice."""

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Prepare weight [out, in] and bias [out] once; the caller drops its reference to `weight` afterwards."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [..., n] / sqrt(mean(x^2) + eps), computed in float32, cast back to x's dtype, then times weight [n].

        A fused kernel multiplies before it casts: one rounding less.
        """

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(rms_norm(s, weight, eps), s) with s = x + residual, the new residual. May write into either argument."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """(x - mean) / sqrt(var + eps) * weight + bias over the last dimension, statistics in float32."""

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(layer_norm(s, weight, bias, eps), s) with s = x + residual, the new residual. May write into x."""

    def rotary_angles(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin [T, d] with equal halves, float32 or `dtype` -> what `rotary` takes, once for all layers."""

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x * cos + cat(-x[..., d/2:], x[..., :d/2]) * sin, every head alike: x [T, heads, d]; rest: `rotary_angles`.

        x may be a view into a wider row. Computed in the wider dtype of x and the angles, returned in that of x; a
        fused kernel takes angles in `dtype` and rounds once, at the end.
        """

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """silu(first half) * second half of the last dimension: [..., 2n] -> [..., n]."""

    def quick_gelu(self, x: Tensor) -> Tensor:
        """x * sigmoid(1.702 x). May write into x."""

    def gelu(self, x: Tensor) -> Tensor:
        """x * (1 + erf(x / sqrt(2))) / 2."""

    def gelu_tanh(self, x: Tensor) -> Tensor:
        """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2."""

    def relu_squared(self, x: Tensor) -> Tensor:
        """max(x, 0) ** 2. May write into x."""

    def check_heads(self, heads: int, kv_heads: int, head_dim: int) -> None:
        """Called when a network with attention is built: CheckpointError where these Ops have none for its heads."""

    def padded_head_dim(self, head_dim: int) -> int:
        """How wide attention here wants heads of `head_dim`: those of `kv_cache` are. Narrower ones it pads itself."""

    def max_table_blocks(self, n_blocks: int, *, grouped: bool) -> int | None:
        """Most blocks that the sequences of one step may name together over a cache of n_blocks, or None: no bound.

        grouped: several query heads share a key and a value.

        A sequence names ceil(kv / block_size) blocks; one that several sequences share counts for each of them. The
        bound is at least n_blocks, so that a sequence alone always fits.
        """

    def kv_cache(self, blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """One layer's zeroed (key, value) cache, each [blocks, block_size, kv_heads, padded_head_dim] in `dtype`."""

    def write_kv(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        """Put key, value [T, kv_heads, head_dim] at slots int64 [T]: block * block_size + offset, unique, never -1."""

    def copy_blocks(self, key_cache: Tensor, value_cache: Tensor, source: Tensor, target: Tensor) -> None:
        """Copy blocks `source` over `target`, int64 [n] each, in place; no block is in both, none twice in `target`."""

    def plan_attention(
        self, q_lens: Sequence[int], kv_lens: Sequence[int], block_tables: Tensor, block_size: int
    ) -> PagedAttention:
        """Once a step, for all layers: whatever the batch's lengths and block tables determine.

        q_lens, kv_lens: host ints of B sequences, 1 <= q <= kv; prefill chunks and decodes in any order. block_tables:
        int32 [B, max_blocks]; entries after a sequence's ceil(kv / block_size) are never followed.
        """

    def graph_attention(
        self, block_tables: Tensor, block_size: int, beside: GraphAttention | None = None
    ) -> GraphAttention:
        """As plan_attention, for a graph of one new token each. RuntimeError where there are no graphs.

        block_tables: int32 [B, max_blocks], read at this place in every replay. beside: of a graph that never runs at
        the same time, whose workspace this one may use.
        """

    def segment_attention(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float | None = None
    ) -> Tensor:
        """Non-causal attention inside consecutive segments of rows: all [T, heads, d] -> [T, heads, d].

        lengths: host ints >= 1 whose sum is T. scale: d ** -0.5 when None. Softmax in float32.
        """

    def cross_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [n, heads, d] over all of key, value [m, heads, d] -> [n, heads, d]; scale and softmax as above."""
