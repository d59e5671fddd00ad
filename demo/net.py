"""The demo model as a network that can be trained: the layout and tensor names of the thinker's checkpoints.

The runtime has its own implementation for serving; a test holds the two against each other.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from demo.layers import GatedMlp, RmsNorm, attend, fused, join_heads, rotate, split_heads
from demo.sizes import Sizes
from demo.towers import AudioTower, VisionTower


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Which embeddings of some media stand where in a batch of prompts; one medium may stand in several prompts."""

    rows: Tensor  # int64 [n]: rows of the flattened batch [B * L]
    source: Tensor  # int64 [n]: rows of the flattened embeddings of all media of the kind


class Attention(nn.Module):
    """Causal attention with grouped keys and values."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.kv_heads = sizes.heads, sizes.kv_heads
        self.q_proj = nn.Linear(sizes.hidden, sizes.heads * sizes.head_dim)
        self.k_proj = nn.Linear(sizes.hidden, sizes.kv_heads * sizes.head_dim)
        self.v_proj = nn.Linear(sizes.hidden, sizes.kv_heads * sizes.head_dim)
        self.o_proj = nn.Linear(sizes.heads * sizes.head_dim, sizes.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x: [B, L, hidden]; cos, sin: [B, 1, L, d]"""
        q, k, v = fused(x, self.q_proj, self.k_proj, self.v_proj)
        q = rotate(split_heads(q, self.heads), cos, sin)
        k = rotate(split_heads(k, self.kv_heads), cos, sin)
        group = self.heads // self.kv_heads
        k, v = (part.repeat_interleave(group, dim=1) for part in (k, split_heads(v, self.kv_heads)))
        out: Tensor = self.o_proj(join_heads(attend(q, k, v, causal=True)))
        return out

    def looks(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, L, L]: how much the first head wants to look from each place (row) at each, before mask and softmax."""
        q = rotate(split_heads(self.q_proj(x), self.heads)[:, :1], cos, sin)
        k = rotate(split_heads(self.k_proj(x), self.kv_heads)[:, :1], cos, sin)
        out: Tensor = (q @ k.transpose(-1, -2))[:, 0] * q.shape[-1] ** -0.5
        return out


class DecoderLayer(nn.Module):
    """One pre-norm block."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn = Attention(sizes)
        self.mlp = GatedMlp(sizes.hidden, sizes.inter, bias=False)
        self.input_layernorm = RmsNorm(sizes.hidden, sizes.eps)
        self.post_attention_layernorm = RmsNorm(sizes.hidden, sizes.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[B, L, hidden] -> the same"""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embeddings in, states out; positions have three rows (time, height, width)."""

    freqs: Tensor  # [d / 2]
    row_of: Tensor  # int64 [d / 2]: which row of the positions turns each frequency

    def __init__(self, sizes: Sizes, vocab: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, sizes.hidden)
        self.layers = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.layers))
        self.norm = RmsNorm(sizes.hidden, sizes.eps)
        d = sizes.head_dim
        self.register_buffer("freqs", 1.0 / sizes.rope_theta ** (torch.arange(0, d, 2) / d), persistent=False)
        row_of = torch.tensor([row for row, n in enumerate(sizes.mrope) for _ in range(n)])
        self.register_buffer("row_of", row_of, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[B, L, hidden] twice: what comes out, and what the second half of the layers begins with.

        x: [B, L, hidden]; positions: int64 [3, B, L]. Shorter prompts are padded on the right.
        """
        cos, sin = self._angles(x, positions)
        for i, layer in enumerate(self.layers):
            if 2 * i == len(self.layers):
                halfway = x
            x = layer(x, cos, sin)
        return self.norm(x), halfway

    def looks(self, halfway: Tensor, positions: Tensor) -> Tensor:
        """[B, L, L]: where the first head looks that reads the states halfway; see `Attention.looks`."""
        layer = self.layers[len(self.layers) // 2]
        assert isinstance(layer, DecoderLayer)
        return layer.self_attn.looks(layer.input_layernorm(halfway), *self._angles(halfway, positions))

    def _angles(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, [B, 1, L, d] each, in the dtype of x."""
        angles = positions[self.row_of].permute(1, 2, 0).float() * self.freqs  # [B, L, d / 2]
        angles = torch.cat([angles, angles], dim=-1)[:, None]
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class DemoNet(nn.Module):
    """All three parts; the state dict has the names of a thinker's checkpoint."""

    def __init__(self, sizes: Sizes, vocab: int) -> None:
        super().__init__()
        self.visual = VisionTower(sizes)
        self.audio_tower = AudioTower(sizes)
        self.model = Decoder(sizes, vocab)
        self.lm_head = nn.Linear(sizes.hidden, vocab, bias=False)
        self.apply(_initialise)

    def forward(self, ids: Tensor, positions: Tensor, media: list[tuple[Tensor, Placed]]) -> Tensor:
        """States of every position [B, L, hidden].

        Arguments as of `states`.
        """
        return self.states(ids, positions, media)[0]

    def states(self, ids: Tensor, positions: Tensor, media: list[tuple[Tensor, Placed]]) -> tuple[Tensor, Tensor]:
        """[B, L, hidden] twice: at the end and halfway through the layers.

        ids: int64 [B, L]; positions: int64 [3, B, L]; media: embeddings [..., hidden] of a kind, and where they stand.
        """
        x = self.model.embed_tokens(ids)
        flat = x.flatten(0, 1)
        for embeddings, placed in media:
            flat = flat.index_copy(0, placed.rows, embeddings.flatten(0, -2)[placed.source].to(flat.dtype))
        out: tuple[Tensor, Tensor] = self.model(flat.view_as(x), positions)
        return out


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv3d):
        fan_in = module.weight[0].numel()
        nn.init.normal_(module.weight, std=fan_in**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.5)
