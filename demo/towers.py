"""The demo model's eyes and ears as networks that can be trained: pixels and mel frames to tokens of the decoder.

Tensors are called as in the thinker's published checkpoints.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.layers import GatedMlp, RmsNorm, attend, fused, join_heads, rotate, split_heads
from demo.sizes import Sizes

# ---- pictures and clips


class VisionAttention(nn.Module):
    """Attention of all patches of one temporal grid with each other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: [B, n, width]; cos, sin: [n, d]"""
        q, k, v = (split_heads(part, self.heads) for part in fused(x, self.q, self.k, self.v))
        out: Tensor = self.proj(join_heads(attend(rotate(q, cos, sin), rotate(k, cos, sin), v)))
        return out


class VisionBlock(nn.Module):
    """One pre-norm block."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1 = RmsNorm(sizes.vision_width, 1e-6)
        self.norm2 = RmsNorm(sizes.vision_width, 1e-6)
        self.attn = VisionAttention(sizes.vision_width, sizes.vision_heads)
        self.mlp = GatedMlp(sizes.vision_width, sizes.vision_inter, bias=True)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, n, width] -> the same"""
        x = x + self.attn(self.norm1(x), cos, sin)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class PatchEmbed(nn.Module):
    """One product per patch; the kernel has two frames."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, sizes.vision_width, (2, sizes.patch, sizes.patch), bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        """[..., 3 * frames * patch^2] normalised, one frame or two a patch -> [..., width]"""
        kernel = self.proj.weight
        if patches.shape[-1] != kernel[0].numel():
            kernel = kernel.sum(dim=2)  # a still picture is the same frame twice
        return F.linear(patches, kernel.flatten(1))


class Merger(nn.Module):
    """Four neighbouring patches become one token of the decoder."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        wide = sizes.vision_width * sizes.merge**2
        self.ln_q = RmsNorm(sizes.vision_width, 1e-6)
        self.mlp = nn.Sequential(nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, sizes.hidden))
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, width] -> [B, n / merge^2, hidden]"""
        out: Tensor = self.mlp(self.ln_q(x).unflatten(1, (-1, self.wide // x.shape[-1])).flatten(2))
        return out


class VisionTower(nn.Module):
    """Patches in merge-block order to tokens; every block sees whole temporal grids."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.patch_embed = PatchEmbed(sizes)
        self.blocks = nn.ModuleList(VisionBlock(sizes) for _ in range(sizes.vision_depth))
        self.merger = Merger(sizes)

    def forward(self, pixels: Tensor, grid: tuple[int, int]) -> Tensor:
        """pixels: uint8 [B, h * w, columns]; grid: (h, w) in patches. -> [B, h * w / merge^2, hidden]"""
        x = self.patch_embed(pixels.float() / 127.5 - 1.0)
        cos, sin = self._angles(*grid)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        out: Tensor = self.merger(x)
        return out

    def _angles(self, h: int, w: int) -> tuple[Tensor, Tensor]:
        m = self.sizes.merge
        half = self.sizes.vision_width // self.sizes.vision_heads // 2
        rows = torch.arange(h).view(h // m, 1, m, 1).expand(h // m, w // m, m, m).flatten()
        columns = torch.arange(w).view(1, w // m, 1, m).expand(h // m, w // m, m, m).flatten()
        freqs = 1.0 / 10_000.0 ** (torch.arange(0, half, 2) / half)
        angles = (torch.stack([rows, columns], 1)[:, :, None] * freqs).flatten(1).repeat(1, 2)  # [h * w, d]
        return angles.cos(), angles.sin()


# ---- sounds


class AudioAttention(nn.Module):
    """Attention inside one chunk; keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(3))
        self.k_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, width] -> the same"""
        q, k, v = (split_heads(part(x), self.heads) for part in (self.q_proj, self.k_proj, self.v_proj))
        out: Tensor = self.out_proj(join_heads(attend(q, k, v)))
        return out


class AudioLayer(nn.Module):
    """One pre-norm block."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.audio_width
        self.self_attn = AudioAttention(width, sizes.audio_heads)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, sizes.audio_inter)
        self.fc2 = nn.Linear(sizes.audio_inter, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, n, width] -> the same"""
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))
        return out


class AudioTower(nn.Module):
    """Mel frames to tokens: chunks of 2 * window frames that do not see each other, then the mean of pairs."""

    positions: Tensor  # [window, width]: sinusoids of a chunk's states

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.audio_width
        self.chunk = 2 * sizes.audio_window
        self.conv1 = nn.Conv1d(sizes.mels, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.layers = nn.ModuleList(AudioLayer(sizes) for _ in range(sizes.audio_depth))
        self.ln_post = nn.LayerNorm(width)
        self.proj = nn.Linear(width, sizes.hidden)
        steps = math.log(10_000) / (width // 2 - 1)
        angles = torch.arange(sizes.audio_window)[:, None] * torch.exp(-steps * torch.arange(width // 2))
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], dim=1), persistent=False)

    def forward(self, mel: Tensor) -> Tensor:
        """[B, frames, mels] -> [B, tokens, hidden], all clips of one length"""
        whole = mel.shape[1] // self.chunk * self.chunk
        parts = []
        if whole:
            chunks = mel[:, :whole].unflatten(1, (-1, self.chunk))  # [B, chunks, chunk, mels]
            parts.append(self._encode(chunks.flatten(0, 1)).unflatten(0, chunks.shape[:2]).flatten(1, 2))
        if whole < mel.shape[1]:
            parts.append(self._encode(mel[:, whole:]))
        x = torch.cat(parts, dim=1)
        n = x.shape[1] // 2 * 2
        out: Tensor = self.proj(self.ln_post((x[:, 0:n:2] + x[:, 1:n:2]) / 2))
        return out

    def _encode(self, mel: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel.transpose(1, 2))))).transpose(1, 2)
        x = x + self.positions[: x.shape[1]].to(x.dtype)
        for layer in self.layers:
            x = layer(x)
        return x
