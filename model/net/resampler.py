"""Learned queries that attend to all patches of a picture, and give one row each."""

from dataclasses import dataclass

from torch import Tensor

from model.net.linear_weights import take_linear
from model.net.norm import Norm, take_norm
from model.net.vision import head_dim_of, resample_positions
from model.ops.base import Linear, Ops
from model.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ResamplerSpec:
    queries: int  # a square number
    width: int  # of the tower
    out: int  # the decoder's hidden size
    heads: int
    side: int  # of the picture, in patches
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampler:
    """Cross-attention of fixed queries over patches. Keys carry the patches' positions, values do not."""

    ops: Ops
    query: Tensor  # [queries, heads, head_dim]: normalised, with positions, projected: the same for every picture
    key_positions: Tensor  # [side^2, out]
    kv_proj: Linear  # width -> out
    kv_norm: Norm
    key: Linear
    value: Linear
    out: Linear
    norm: Norm
    proj: Linear  # to the decoder's space

    def __call__(self, x: Tensor) -> Tensor:
        """x: [side^2, width], row by row. -> [queries, out]"""
        heads = self.query.shape[1]
        kv = self.kv_norm(self.kv_proj(x))  # [side^2, out]
        key = self.key(kv + self.key_positions).unflatten(-1, (heads, -1))
        value = self.value(kv).unflatten(-1, (heads, -1))
        mixed = self.out(self.ops.cross_attention(self.query, key, value).flatten(1))  # [queries, out]
        return self.proj(self.norm(mixed))


def build_resampler(ops: Ops, weights: Weights, spec: ResamplerSpec, prefix: str) -> Resampler:
    """Take the tensors of `attn_pool` (one attention, its thirds fused), `ln_post` and `proj` under `prefix`."""
    ops.check_heads(spec.heads, spec.heads, head_dim_of(spec.out, spec.heads))
    out, pool = spec.out, f"{prefix}attn_pool."
    attention = f"{pool}attn."
    positions = weights.take(f"{pool}pos_embed", (spec.queries, out))
    query_norm = take_norm(ops, weights, "layer", f"{pool}ln_q", out, spec.eps)
    query = query_norm(weights.take(f"{pool}query", (spec.queries, out))) + positions
    matrices = weights.take(f"{attention}in_proj_weight", (3 * out, out)).chunk(3)
    biases = weights.take(f"{attention}in_proj_bias", (3 * out,)).chunk(3)
    # Clones: a view would keep the memory of all thirds alive.
    of_query, key, value = (ops.linear(w.clone(), b.clone()) for w, b in zip(matrices, biases, strict=True))
    return Resampler(
        ops=ops,
        query=of_query(query).unflatten(-1, (spec.heads, -1)),
        key_positions=resample_positions(positions, spec.side).to(ops.dtype),
        kv_proj=take_linear(ops, weights, f"{pool}kv_proj", out, spec.width, bias=False),
        kv_norm=take_norm(ops, weights, "layer", f"{pool}ln_kv", out, spec.eps),
        key=key,
        value=value,
        out=take_linear(ops, weights, f"{attention}out_proj", out, out, bias=True),
        norm=take_norm(ops, weights, "layer", f"{prefix}ln_post", out, spec.eps),
        proj=ops.linear(weights.take(f"{prefix}proj", (out, out)).T.contiguous()),  # on disk x @ proj
    )
