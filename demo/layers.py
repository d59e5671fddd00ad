"""What both towers and the decoder of the demo model are made of."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RmsNorm(nn.Module):
    """Root-mean-square norm with a gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same"""
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def fused(x: Tensor, *parts: nn.Linear) -> tuple[Tensor, ...]:
    """Several linear layers of one input as one product. [..., n_in] -> one [..., n_out] for each."""
    weight = torch.cat(tuple(part.weight for part in parts))
    biases = [part.bias for part in parts if part.bias is not None]
    out = F.linear(x, weight, torch.cat(tuple(biases)) if biases else None)
    split: tuple[Tensor, ...] = out.split([part.out_features for part in parts], dim=-1)
    return split


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in halves: x [..., heads, n, d], cos and sin broadcast to it, in the dtype of x."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    """Attention of [B, heads, n, d]. Under autocast it is written out: on a CPU torch's own is slower in bfloat16."""
    if not torch.is_autocast_enabled("cpu"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # [B, heads, n, n]
    if causal:
        hidden = torch.full(scores.shape[-2:], float("-inf"), dtype=scores.dtype).triu(1)
        scores = scores + hidden
    with torch.autocast("cpu", enabled=False):
        out: Tensor = scores.softmax(-1) @ v.to(scores.dtype)
        return out


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, n, heads * d] -> [B, heads, n, d]"""
    out: Tensor = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return out


def join_heads(x: Tensor) -> Tensor:
    """[B, heads, n, d] -> [B, n, heads * d]"""
    out: Tensor = x.transpose(1, 2).flatten(2)
    return out


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, width: int, inter: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inter, bias=bias)
        self.up_proj = nn.Linear(width, inter, bias=bias)
        self.down_proj = nn.Linear(inter, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same"""
        gate, up = fused(x, self.gate_proj, self.up_proj)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out
