"""The pre-norm decoder that all families share: layers over packed tokens and a paged cache."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from configs.checkpoint import CheckpointError
from model.forward_batch import KVCache, KVSpec
from model.net.linear_weights import per_head_rows, take_fused, take_row_parallel
from model.net.mlp import Activation, Mlp, MlpSpec, take_mlp
from model.net.norm import AddNorm, Norm, NormKind, take_add_norm, take_norm
from model.net.rank_parts import RankPart, head_places, rank_part
from model.net.rope import turned_order
from model.ops.base import Linear, Ops, PagedAttention
from model.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    hidden: int
    inter: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    qkv_bias: bool
    bias: bool = False  # of the other linears
    norm: NormKind = "rms"
    head_norm: bool = False  # of each query and key, before they turn
    activation: Activation = "swiglu"  # between the linears of a layer
    turned: int | None = None  # how many dims of a head turn, from its first on; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderNames:
    """Tensor names on disk, those of a layer after `layers`.N; a tuple of one name is a matrix fused on disk."""

    layers: str = "layers"
    input_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    qkv_per_head: bool = False  # a fused one: rows are (heads, 3, head_dim) instead of (3, heads, head_dim)
    head_norms: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")
    o: str = "self_attn.o_proj"
    post_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")  # of an ungated one: up
    down: str = "mlp.down_proj"
    norm: str = "norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputs:
    """What every layer takes from a step of T tokens."""

    angles: tuple[Tensor, Tensor]  # of `Ops.rotary_angles`
    query_scale: Tensor | None  # float32 [T], factors of the rotated queries; None: all are 1
    slots: Tensor  # int64 [T]
    attend: PagedAttention
    # int64 [M] rows of media tokens, and what else than an embedding each has, [M, n * hidden]; None: there are none.
    media: tuple[Tensor, Tensor] | None = None


class AttentionPart(Protocol):
    """What a layer's tokens see of each other, before its output linear."""

    def __call__(self, normed: Tensor, cache: tuple[Tensor, Tensor], step: LayerInputs) -> Tensor:
        """[T, hidden] -> [T, heads * head_dim]; writes all T keys and values into the layer's cache."""


Addition = Callable[[Tensor, LayerInputs], Tensor]
"""[T, hidden] that a layer is given -> the same, with what a recipe adds there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal attention of packed tokens over a paged cache, with rotary positions."""

    ops: Ops
    heads: int
    kv_heads: int
    head_dim: int
    qkv: Linear  # hidden -> (heads + 2 kv_heads) * head_dim
    head_norm: Norm | None  # [T, heads + kv_heads, head_dim]

    def __call__(self, normed: Tensor, cache: tuple[Tensor, Tensor], step: LayerInputs) -> Tensor:
        rotated = self.heads + self.kv_heads
        qkv = self.qkv(normed).unflatten(-1, (rotated + self.kv_heads, self.head_dim))
        turning = qkv[:, :rotated]
        if self.head_norm is not None:
            turning = self.head_norm(turning)
        qk = self.ops.rotary(turning, *step.angles)  # [T, heads + kv_heads, head_dim]
        self.ops.write_kv(qk[:, self.heads :], qkv[:, rotated:], *cache, step.slots)
        query = qk[:, : self.heads]
        if step.query_scale is not None:
            query = (query * step.query_scale[:, None, None]).to(query.dtype)
        return step.attend(query, *cache).flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    input_norm: AddNorm
    attention: AttentionPart
    o: Linear
    post_norm: AddNorm
    mlp: Mlp
    addition: Addition | None = None  # to what the layer before gave


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    ops: Ops
    spec: DecoderSpec  # of what this rank holds
    layers: tuple[DecoderLayer, ...]
    norm: AddNorm  # behind the last layer

    @property
    def kv(self) -> KVSpec:
        spec = self.spec
        cached_dim = self.ops.padded_head_dim(spec.head_dim)
        return KVSpec(
            layers=spec.layers, kv_heads=spec.kv_heads, head_dim=spec.head_dim, cached_dim=cached_dim,
            grouped=spec.heads > spec.kv_heads,
        )  # fmt: skip

    def __call__(self, x: Tensor, kv: KVCache, step: LayerInputs, rows: Tensor) -> Tensor:
        """x [T, hidden]; rows int64 [S], S >= 0 -> [S, hidden]. Writes all T keys and values into `kv`."""
        residual: Tensor | None = None
        for i, layer in enumerate(self.layers):
            if layer.addition is not None:
                x = layer.addition(x, step)
            x, residual = layer.input_norm(x, residual)
            x = layer.attention(x, kv[i], step)  # [T, heads * head_dim]
            if layer is self.layers[-1]:  # after the last cache only the wanted rows matter
                x, residual = x.index_select(0, rows), residual.index_select(0, rows)
                if rows.shape[0] == 0:
                    return residual
            x, residual = layer.post_norm(layer.o(x), residual)
            x = layer.mlp(x)
        return self.norm(x, residual)[0]


def build_decoder(
    ops: Ops, weights: Weights, spec: DecoderSpec, prefix: str, names: DecoderNames | None = None
) -> Decoder:
    """Take a decoder's tensors under `prefix` ("model."); names None: the usual ones."""
    ops.check_heads(spec.heads, spec.kv_heads, spec.head_dim)
    part = rank_part(ops.ranks, heads=spec.heads, kv_heads=spec.kv_heads, inter=spec.inter)
    if part is not None:
        ops.check_heads(len(part.heads), len(part.kv_heads), spec.head_dim)
    names = names or DecoderNames()
    weights.check_blocks(f"{prefix}{names.layers}.", spec.layers)
    layer = partial(_build_layer, ops, weights, spec, part, names)
    return Decoder(
        ops=ops,
        spec=_of_rank(spec, part),
        layers=tuple(layer(f"{prefix}{names.layers}.{i}.") for i in range(spec.layers)),
        norm=take_add_norm(ops, weights, spec.norm, f"{prefix}{names.norm}", spec.hidden, spec.eps),
    )


def with_deepstack(decoder: Decoder, n: int) -> Decoder:
    """The same, where the first `n` layers' outputs get at media tokens what a tapped tower made of them.

    Raises CheckpointError where no layer comes behind those.
    """
    if n >= len(decoder.layers):
        raise CheckpointError(f"config.json: {n} additions of deepstack need more than {len(decoder.layers)} layers")
    hidden = decoder.spec.hidden
    layers = [
        replace(layer, addition=_deepstack(slice((i - 1) * hidden, i * hidden))) if 1 <= i <= n else layer
        for i, layer in enumerate(decoder.layers)
    ]
    return replace(decoder, layers=tuple(layers))


def _deepstack(columns: slice) -> Addition:
    """columns: of `LayerInputs.media`."""

    def add(x: Tensor, step: LayerInputs) -> Tensor:
        if step.media is not None:
            rows, parts = step.media
            x.index_copy_(0, rows, x.index_select(0, rows) + parts[:, columns])
        return x

    return add


def _of_rank(spec: DecoderSpec, part: RankPart | None) -> DecoderSpec:
    if part is None:
        return spec
    return replace(spec, heads=len(part.heads), kv_heads=len(part.kv_heads), inter=len(part.inter))


def _build_layer(
    ops: Ops, weights: Weights, spec: DecoderSpec, part: RankPart | None, names: DecoderNames, prefix: str
) -> DecoderLayer:
    hidden, heads, kv_heads = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    qkv = [sum((heads, kv_heads, kv_heads))] if len(names.qkv) == 1 else [heads, kv_heads, kv_heads]
    parts = [(prefix + name, rows) for name, rows in zip(names.qkv, qkv, strict=True)]
    mlp = MlpSpec(width=hidden, inter=spec.inter, out=hidden, activation=spec.activation, bias=spec.bias)
    mine = _of_rank(spec, part)
    inputs = None if part is None else range(part.heads.start * spec.head_dim, part.heads.stop * spec.head_dim)
    return DecoderLayer(
        input_norm=take_add_norm(ops, weights, spec.norm, f"{prefix}{names.input_norm}", hidden, spec.eps),
        attention=Attention(
            ops=ops,
            heads=mine.heads,
            kv_heads=mine.kv_heads,
            head_dim=spec.head_dim,
            qkv=take_fused(ops, weights, parts, hidden, bias=spec.qkv_bias, rows=_qkv_rows(spec, names, part)),
            head_norm=_take_head_norm(ops, weights, mine, prefix, names) if spec.head_norm else None,
        ),
        o=take_row_parallel(ops, weights, f"{prefix}{names.o}", hidden, heads, bias=spec.bias, part=inputs),
        post_norm=take_add_norm(ops, weights, spec.norm, f"{prefix}{names.post_norm}", hidden, spec.eps),
        mlp=take_mlp(
            ops, weights, [prefix + name for name in names.gate_up], f"{prefix}{names.down}", mlp,
            part=None if part is None else part.inter,
        ),
    )  # fmt: skip


def _qkv_rows(spec: DecoderSpec, names: DecoderNames, part: RankPart | None) -> Tensor | None:
    """Where each output of the qkv linear lies on disk, or None where they are in order."""
    order = _head_order(spec)
    if order is None and not names.qkv_per_head and part is None:
        return None
    n, dim, turned = spec.heads + 2 * spec.kv_heads, spec.head_dim, spec.heads + spec.kv_heads
    rows = (per_head_rows(spec.heads, dim) if names.qkv_per_head else torch.arange(n * dim)).view(n, dim)
    if order is not None:
        rows = torch.cat([rows[:turned, order], rows[turned:]])
    return (rows if part is None else head_places(rows, spec.heads, spec.kv_heads, part)).flatten()


def _head_order(spec: DecoderSpec) -> Tensor | None:
    return None if spec.turned is None else turned_order(spec.head_dim, spec.turned)


def _take_head_norm(ops: Ops, weights: Weights, spec: DecoderSpec, prefix: str, names: DecoderNames) -> Norm:
    """Queries have one norm and keys another."""
    order, heads = _head_order(spec), spec.heads
    of_query, of_key = (
        take_norm(ops, weights, spec.norm, prefix + name, spec.head_dim, spec.eps, order) for name in names.head_norms
    )
    return lambda x: torch.cat([of_query(x[:, :heads]), of_key(x[:, heads:])], dim=1)
