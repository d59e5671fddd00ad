"""The specification of Ops in plain torch, on any torch device, with fast paths for a CPU."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.checkpoint import CheckpointError
from model.ops.base import GraphAttention, Linear, PagedAttention
from model.ops.collectives import ALONE, Ranks
from model.ops.paged import plan_paged_attention

_PACK_ROWS = 8  # oneDNN packs for about this many rows; within a fifth of the best layout from 1 row to a whole prompt


class TorchOps:
    def __init__(
        self, device: torch.device, dtype: torch.dtype, ranks: Ranks = ALONE, kind: str | None = None
    ) -> None:  # fmt: skip
        """kind: as of `load_ops`."""
        self.device = device
        self.dtype = dtype
        self.ranks = ranks
        # The packed weights of oneDNN are private torch operators: used only where they were just seen to work.
        self.prepacks = (kind or device.type) == "cpu" and _prepacking_works(dtype)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        if self.prepacks and not weight.is_meta:
            return _PackedLinear(weight, bias)
        return _PlainLinear(weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype).mul_(weight)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x.add_(residual)
        return self.rms_norm(total, weight, eps), total

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        total = x.add_(residual)
        return self.layer_norm(total, weight, bias, eps), total

    def rotary_angles(self, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return cos, sin

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)  # [T, heads, d]
        return torch.addcmul(x * cos[:, None], turned, sin[:, None]).to(x.dtype)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def quick_gelu(self, x: Tensor) -> Tensor:
        return (x * 1.702).sigmoid_().mul_(x)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x)

    def gelu_tanh(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def relu_squared(self, x: Tensor) -> Tensor:
        x = x.relu_()
        return x.mul_(x)

    def check_heads(self, heads: int, kv_heads: int, head_dim: int) -> None:
        if heads % kv_heads or head_dim < 2 or head_dim % 2:
            raise CheckpointError(
                f"config.json: {heads} heads of {head_dim} over {kv_heads} of keys: they cannot turn in pairs, or share"
            )

    def padded_head_dim(self, head_dim: int) -> int:
        return head_dim

    def max_table_blocks(self, n_blocks: int, *, grouped: bool) -> int | None:
        return None

    def kv_cache(self, blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        shape = (blocks, block_size, kv_heads, head_dim)
        return (
            torch.zeros(shape, dtype=self.dtype, device=self.device),
            torch.zeros(shape, dtype=self.dtype, device=self.device),
        )

    def write_kv(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        key_cache.flatten(0, 1).index_copy_(0, slots, key)
        value_cache.flatten(0, 1).index_copy_(0, slots, value)

    def copy_blocks(self, key_cache: Tensor, value_cache: Tensor, source: Tensor, target: Tensor) -> None:
        for cache in (key_cache, value_cache):
            cache.index_copy_(0, target, cache.index_select(0, source))

    def plan_attention(
        self, q_lens: Sequence[int], kv_lens: Sequence[int], block_tables: Tensor, block_size: int
    ) -> PagedAttention:
        return plan_paged_attention(q_lens, kv_lens, block_tables, block_size, self.dtype)

    def graph_attention(
        self, block_tables: Tensor, block_size: int, beside: GraphAttention | None = None
    ) -> GraphAttention:
        raise RuntimeError("graphs are captured on NPUs alone")

    def segment_attention(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float | None = None
    ) -> Tensor:
        out = torch.empty_like(query)
        start = i = 0
        while i < len(lengths):  # neighbours of equal length are one batch
            same = i
            while same < len(lengths) and lengths[same] == lengths[i]:
                same += 1
            n, length = same - i, lengths[i]
            rows = slice(start, start + n * length)
            q, k, v = (x[rows].unflatten(0, (n, length)).transpose(1, 2) for x in (query, key, value))
            found = F.scaled_dot_product_attention(q, k, v, scale=scale)  # [segments, heads, length, d]
            out[rows] = found.transpose(1, 2).flatten(0, 1)
            start, i = rows.stop, same
        return out

    def cross_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))  # [1, heads, rows, d]
        return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).contiguous()


class _PlainLinear:
    """The weight is shared, not copied."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class _PackedLinear:
    """The weight is copied once into oneDNN's own layout: 1.4 to 3 times faster in decode."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
        self._bias = bias
        self._run = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._run(x, self._weight, self._bias, "none", [], "")
        return out


def _prepacking_works(dtype: torch.dtype) -> bool:
    """Whether this torch on this processor packs weights of `dtype` and then computes what F.linear computes."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    weight = torch.linspace(-1, 1, 48 * 32).view(48, 32).to(dtype)
    bias = torch.linspace(-2, 2, 48).to(dtype)
    x = torch.linspace(-1, 2, 3 * 32).view(3, 32).to(dtype)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        found = _PackedLinear(weight, bias)(x)
    except (AttributeError, RuntimeError):  # the operator is missing or refuses: another torch or processor
        return False
    expected = F.linear(x.float(), weight.float(), bias.float())
    return torch.allclose(found.float(), expected, rtol=0.02, atol=0.05 if dtype == torch.bfloat16 else 1e-4)
