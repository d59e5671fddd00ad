"""The pre-norm decoder that all families share: layers over packed tokens and a paged cache."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model.forward_batch import KVCache, KVSpec
from model.net.linear import per_head_rows, take_fused, take_linear
from model.net.norm import AddNorm, Norm, NormKind, take_add_norm, take_layer_norm, take_rms_norm
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
    gated: bool = True  # silu(gate) * up between the linears of a layer; else the square of what is above 0
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
class DecoderLayer:
    qkv: Linear  # hidden -> (heads + 2 kv_heads) * head_dim
    head_norm: Norm | None  # [T, heads + kv_heads, head_dim]
    o: Linear
    post_norm: AddNorm
    up: Linear  # hidden -> 2 inter (gate, up), of an ungated one inter
    down: Linear
    next_norm: AddNorm  # before the next layer, behind the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    ops: Ops
    spec: DecoderSpec
    norm: Norm  # before the first layer
    layers: tuple[DecoderLayer, ...]
    activation: Callable[[Tensor], Tensor]  # between up and down

    @property
    def kv(self) -> KVSpec:
        spec = self.spec
        cached_dim = self.ops.cache_head_dim(spec.head_dim)
        return KVSpec(layers=spec.layers, kv_heads=spec.kv_heads, head_dim=spec.head_dim, cached_dim=cached_dim)

    def __call__(
        self,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        kv: KVCache,
        slots: Tensor,
        attend: PagedAttention,
        rows: Tensor,
        q_scale: Tensor | None = None,
    ) -> Tensor:
        """x [T, hidden]; angles: of `Ops.rotary_angles`; slots int64 [T]; rows int64 [S], S >= 0 -> [S, hidden].

        Writes all T keys and values into `kv`. q_scale: float32 [T], factors of the rotated queries; None: all are 1.
        """
        residual, last, activation = x, self.layers[-1], self.activation
        normed = self.norm(x)
        for i, layer in enumerate(self.layers):
            mixed = self._attention(layer, normed, angles, kv[i], slots, attend, q_scale)  # [T, heads * head_dim]
            if layer is last:  # after the last cache only the wanted rows matter
                mixed, residual = mixed.index_select(0, rows), residual.index_select(0, rows)
                if rows.shape[0] == 0:
                    return residual
            normed, residual = layer.post_norm(layer.o(mixed), residual)
            normed, residual = layer.next_norm(layer.down(activation(layer.up(normed))), residual)
        return normed

    def _attention(
        self,
        layer: DecoderLayer,
        normed: Tensor,
        angles: tuple[Tensor, Tensor],
        cache: tuple[Tensor, Tensor],
        slots: Tensor,
        attend: PagedAttention,
        q_scale: Tensor | None,
    ) -> Tensor:
        spec, ops = self.spec, self.ops
        rotated = spec.heads + spec.kv_heads
        qkv = layer.qkv(normed).unflatten(-1, (rotated + spec.kv_heads, spec.head_dim))
        heads = qkv[:, :rotated]
        if layer.head_norm is not None:
            heads = layer.head_norm(heads)
        qk = ops.rotary(heads, *angles)  # [T, heads + kv_heads, head_dim]
        ops.write_kv(qk[:, spec.heads :], qkv[:, rotated:], *cache, slots)
        query = qk[:, : spec.heads]
        if q_scale is not None:
            query = (query * q_scale[:, None, None]).to(query.dtype)
        return attend(query, *cache).flatten(1)


def build_decoder(
    ops: Ops, weights: Weights, spec: DecoderSpec, prefix: str, names: DecoderNames | None = None
) -> Decoder:
    """Take a decoder's tensors under `prefix` ("model."); names None: the usual ones."""
    ops.check_heads(spec.heads, spec.kv_heads, spec.head_dim)
    names = names or DecoderNames()
    weights.check_blocks(f"{prefix}{names.layers}.", spec.layers)
    layers = [f"{prefix}{names.layers}.{i}." for i in range(spec.layers)]
    nexts = [*(f"{layer}{names.input_norm}" for layer in layers[1:]), f"{prefix}{names.norm}"]
    take_norm = take_rms_norm if spec.norm == "rms" else take_layer_norm
    return Decoder(
        ops=ops,
        spec=spec,
        norm=take_norm(ops, weights, f"{layers[0]}{names.input_norm}", spec.hidden, spec.eps),
        layers=tuple(
            _build_layer(ops, weights, spec, layer, names, following)
            for layer, following in zip(layers, nexts, strict=True)
        ),
        activation=ops.swiglu if spec.gated else ops.relu_squared,
    )


def _build_layer(
    ops: Ops, weights: Weights, spec: DecoderSpec, prefix: str, names: DecoderNames, following: str
) -> DecoderLayer:
    """following: the name of the norm behind the layer."""
    hidden, heads, kv_heads = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    qkv = _parts(prefix, names.qkv, (heads, kv_heads, kv_heads))
    up = _parts(prefix, names.gate_up, (spec.inter, spec.inter) if spec.gated else (spec.inter,))
    return DecoderLayer(
        qkv=take_fused(ops, weights, qkv, hidden, bias=spec.qkv_bias, rows=_qkv_rows(spec, names)),
        head_norm=_take_head_norm(ops, weights, spec, prefix, names) if spec.head_norm else None,
        o=take_linear(ops, weights, f"{prefix}{names.o}", hidden, heads, bias=spec.bias),
        post_norm=take_add_norm(ops, weights, spec.norm, f"{prefix}{names.post_norm}", hidden, spec.eps),
        up=take_fused(ops, weights, up, hidden, bias=spec.bias),
        down=take_linear(ops, weights, f"{prefix}{names.down}", hidden, spec.inter, bias=spec.bias),
        next_norm=take_add_norm(ops, weights, spec.norm, following, hidden, spec.eps),
    )


def _qkv_rows(spec: DecoderSpec, names: DecoderNames) -> Tensor | None:
    """Where each output of the qkv linear lies on disk, or None where they are in order."""
    order = _head_order(spec)
    if order is None and not names.qkv_per_head:
        return None
    n, dim, turned = spec.heads + 2 * spec.kv_heads, spec.head_dim, spec.heads + spec.kv_heads
    rows = (per_head_rows(spec.heads, dim) if names.qkv_per_head else torch.arange(n * dim)).view(n, dim)
    if order is not None:
        rows = torch.cat([rows[:turned, order], rows[turned:]])
    return rows.flatten()


def _head_order(spec: DecoderSpec) -> Tensor | None:
    return None if spec.turned is None else turned_order(spec.head_dim, spec.turned)


def _take_head_norm(ops: Ops, weights: Weights, spec: DecoderSpec, prefix: str, names: DecoderNames) -> Norm:
    """Queries have one norm and keys another."""
    order, heads = _head_order(spec), spec.heads
    take_norm = take_rms_norm if spec.norm == "rms" else take_layer_norm
    of_query, of_key = (
        take_norm(ops, weights, prefix + name, spec.head_dim, spec.eps, order) for name in names.head_norms
    )
    return lambda x: torch.cat([of_query(x[:, :heads]), of_key(x[:, heads:])], dim=1)


def _parts(prefix: str, names: tuple[str, ...], sizes: tuple[int, ...]) -> list[tuple[str, int]]:
    """(name, rows) of the matrices that make up one linear: several, or the one that is fused on disk."""
    fused = (sum(sizes),) if len(names) == 1 else sizes
    return [(prefix + name, size) for name, size in zip(names, fused, strict=True)]
