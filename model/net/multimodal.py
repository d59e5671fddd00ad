"""A decoder with an encoder for each kind of medium, and what the engine may ask of them. Knows no request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from model.forward_batch import ForwardBatch, KVCache, KVSpec
from model.net.decoder import Decoder
from model.net.rope import LogN, Rope
from model.ops.base import Linear, Ops


class Encoder(Protocol):
    """What turns the array of one medium into rows of the decoder's input."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the array that a medium consists of: uint8 of pictures and videos, float32 of audios."""

    def input_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """The array that a medium of this grid consists of."""

    def __call__(self, array: Tensor, grid: tuple[int, int, int], /) -> Tensor:
        """`dtype` array of `input_shape` -> [tokens, hidden]. Raises ValueError where the two do not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalLM:
    """What a family's `build` returns."""

    ops: Ops
    embed: Tensor  # [vocab, hidden]
    head: Linear  # hidden -> vocab
    rope: Rope
    decoder: Decoder
    encoders: Mapping[str, Encoder]  # by kind: "image", "video", "audio"
    pad_ids: Mapping[str, int]  # by kind: the id that stands in the prompt for each row of embeddings
    media_token_ids: frozenset[int] = frozenset()  # ids that mark media; with the pads, what is never sampled
    logn: LogN | None = None  # scales queries far behind the trained length

    @property
    def device(self) -> torch.device:
        return self.ops.device

    @property
    def dtype(self) -> torch.dtype:
        return self.ops.dtype

    @property
    def vocab_size(self) -> int:
        return self.embed.shape[0]

    @property
    def hidden_size(self) -> int:
        return self.embed.shape[1]

    @property
    def kv(self) -> KVSpec:
        return self.decoder.kv

    def kv_cache(self, blocks: int, block_size: int) -> KVCache:
        """An empty cache of all layers."""
        kv = self.kv
        return [self.ops.kv_cache(blocks, block_size, kv.kv_heads, kv.head_dim) for _ in range(kv.layers)]

    def copy_blocks(self, kv: KVCache, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks inside all layers of `kv`: pairs of (from, to); no block is both."""
        with torch.inference_mode():
            source, target = torch.tensor(pairs, dtype=torch.int64, device=self.device).unbind(1)
            for key, value in kv:
                self.ops.copy_blocks(key, value, source, target)

    def media_shape(self, kind: str, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """The shape of one medium's array, as `encode` takes it.

        `grid` is (t, h, w) in patches, of an audio (1, 1, frames).
        """
        return self.encoders[kind].input_shape(grid)

    def media_dtype(self, kind: str) -> torch.dtype:
        """The dtype of the arrays of this kind: uint8 or float32."""
        return self.encoders[kind].dtype

    def encode(self, kind: str, array: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """One medium to the embeddings that stand for its pads -> [tokens, hidden].

        array: `media_dtype`, `media_shape`, on the device. Raises KeyError for a kind this model does not take,
        ValueError when array and grid do not fit.
        """
        with torch.inference_mode():
            return self.encoders[kind](array, grid)

    def forward(self, batch: ForwardBatch, kv: KVCache) -> Tensor:
        """One step: writes the batch's keys and values into `kv`; logits of `batch.sample_rows`, float32 [S, vocab]."""
        with torch.inference_mode():
            x = F.embedding(batch.ids, self.embed)  # [T, hidden]
            if batch.media_embeds is not None:
                x.index_copy_(0, batch.media_rows, batch.media_embeds.to(x.device, x.dtype))
            block_size = kv[0][0].shape[1]
            attend = self.ops.plan_attention(batch.q_lens, batch.kv_lens, batch.block_tables, block_size)
            angles = self.rope.angles(batch)
            scales = self.logn.scales(batch) if self.logn else None
            states = self.decoder(x, angles, kv, batch.slots, attend, batch.sample_rows, scales)  # [S, hidden]
            if states.shape[0] == 0:
                return torch.empty((0, self.vocab_size), dtype=torch.float32, device=x.device)
            return self.head(states).float()
