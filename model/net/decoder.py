"""The pre-norm decoder that all families share: layers over packed tokens and a paged cache."""

from dataclasses import dataclass

from torch import Tensor

from model.forward_batch import KVCache, KVSpec
from model.net.linear import take_fused, take_linear
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderNames:
    """Tensor names on disk, those of a layer after `layers`.N; a tuple of one name is a matrix fused on disk."""

    layers: str = "layers"
    input_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    o: str = "self_attn.o_proj"
    post_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    norm: str = "norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    input_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 kv_heads) * head_dim
    o: Linear
    post_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 inter
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    ops: Ops
    spec: DecoderSpec
    layers: tuple[DecoderLayer, ...]
    norm: Tensor  # [hidden]

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
        ops, eps = self.ops, self.spec.eps
        residual, last = x, self.layers[-1]
        normed = ops.rms_norm(x, self.layers[0].input_norm, eps)
        for i, layer in enumerate(self.layers):
            mixed = self._attention(layer, normed, angles, kv[i], slots, attend, q_scale)  # [T, heads * head_dim]
            if layer is last:  # after the last cache only the wanted rows matter
                mixed, residual = mixed.index_select(0, rows), residual.index_select(0, rows)
                if rows.shape[0] == 0:
                    return residual
            normed, residual = ops.add_rms_norm(layer.o(mixed), residual, layer.post_norm, eps)
            fed = layer.down(ops.swiglu(layer.gate_up(normed)))
            following = self.norm if layer is last else self.layers[i + 1].input_norm
            normed, residual = ops.add_rms_norm(fed, residual, following, eps)
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
        qk = ops.rotary(qkv[:, :rotated], *angles)  # [T, heads + kv_heads, head_dim]
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
    layers = [f"{prefix}{names.layers}.{i}." for i in range(spec.layers)]
    return Decoder(
        ops=ops,
        spec=spec,
        layers=tuple(_build_layer(ops, weights, spec, layer, names) for layer in layers),
        norm=weights.take(f"{prefix}{names.norm}.weight", (spec.hidden,)),
    )


def _build_layer(ops: Ops, weights: Weights, spec: DecoderSpec, prefix: str, names: DecoderNames) -> DecoderLayer:
    hidden, heads, kv_heads = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    qkv = _parts(prefix, names.qkv, (heads, kv_heads, kv_heads))
    gate_up = _parts(prefix, names.gate_up, (spec.inter, spec.inter))
    return DecoderLayer(
        input_norm=weights.take(f"{prefix}{names.input_norm}.weight", (hidden,)),
        qkv=take_fused(ops, weights, qkv, hidden, bias=spec.qkv_bias),
        o=take_linear(ops, weights, f"{prefix}{names.o}", hidden, heads, bias=False),
        post_norm=weights.take(f"{prefix}{names.post_norm}.weight", (hidden,)),
        gate_up=take_fused(ops, weights, gate_up, hidden, bias=False),
        down=take_linear(ops, weights, f"{prefix}{names.down}", hidden, spec.inter, bias=False),
    )


def _parts(prefix: str, names: tuple[str, ...], sizes: tuple[int, ...]) -> list[tuple[str, int]]:
    """(name, rows) of the matrices that make up one linear: several, or the one that is fused on disk."""
    fused = (sum(sizes),) if len(names) == 1 else sizes
    return [(prefix + name, size) for name, size in zip(names, fused, strict=True)]
