"""A decoder with an encoder for each kind of medium: the network as the engine calls it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from model.forward_batch import ForwardBatch, KVCache, KVSpec
from model.net.decoder import Decoder, LayerInputs
from model.net.linear_weights import Embedding
from model.net.rope import LogN, Rope
from model.ops.base import Linear, Ops


class Encoder(Protocol):
    @property
    def dtype(self) -> torch.dtype:
        """Of a medium's array: uint8 of pictures and videos, float32 of audios."""

    def input_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """Of the array of a medium of this grid: (t, h, w) in patches, of an audio (1, 1, frames)."""

    def __call__(self, arrays: Sequence[Tensor], grids: Sequence[tuple[int, int, int]], /) -> list[Tensor]:
        """Several media together: `dtype` arrays of `input_shape` -> [tokens, width] of each.

        width: the hidden size; with deepstack as often more as it adds to layers.

        They do not see each other. Raises ValueError where an array and its grid do not fit.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """How the tokens of a step are turned, and their queries scaled, in every layer: as of `LayerInputs`."""

    angles: tuple[Tensor, Tensor]
    scales: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalLM:
    ops: Ops
    embed: Embedding
    head: Linear  # hidden -> vocab
    rope: Rope
    decoder: Decoder
    encoders: Mapping[str, Encoder]  # by kind: "image", "video", "audio"
    placeholder_ids: Mapping[str, int]  # by kind: the id that stands in the prompt for each row of embeddings
    media_token_ids: frozenset[int] = frozenset()  # of media: placeholders, and the delimiters around them
    logn: LogN | None = None  # scales queries past the trained length
    deepstack: int = 0  # of how many layers the outputs get something at media tokens, from the first on

    @property
    def device(self) -> torch.device:
        return self.ops.device

    @property
    def dtype(self) -> torch.dtype:
        return self.ops.dtype

    @property
    def vocab_size(self) -> int:
        return self.embed.vocab

    @property
    def banned_ids(self) -> list[int]:
        """Never sampled: placeholders and delimiters that have a logit. A vocabulary may hold more than the head."""
        return sorted(
            token for token in {*self.placeholder_ids.values(), *self.media_token_ids} if token < self.vocab_size
        )

    @property
    def hidden_size(self) -> int:
        return self.embed.table.shape[1]

    @property
    def media_width(self) -> int:
        """Of what an encoder gives for one token: its embedding, then what deepstack adds to layers."""
        return self.hidden_size * (1 + self.deepstack)

    @property
    def kv(self) -> KVSpec:
        return self.decoder.kv

    def kv_cache(self, blocks: int, block_size: int) -> KVCache:
        kv = self.kv
        return [self.ops.kv_cache(blocks, block_size, kv.kv_heads, kv.head_dim) for _ in range(kv.layers)]

    def copy_blocks(self, kv: KVCache, source: Tensor, target: Tensor) -> None:
        """Blocks, int64 [n] each, in all layers of `kv`; no block is in both."""
        with torch.inference_mode():
            for key, value in kv:
                self.ops.copy_blocks(key, value, source, target)

    def encode(self, kind: str, arrays: Sequence[Tensor], grids: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """Media of one kind, as the encoder of that kind takes them -> [tokens, media_width] of each.

        Raises KeyError (kind), ValueError (misfit).
        """
        with torch.inference_mode():
            return self.encoders[kind](arrays, grids)

    def forward(self, batch: ForwardBatch, kv: KVCache) -> Tensor:
        """[S, hidden] of `batch.sample_rows`, before the head; writes the batch's keys and values into `kv`."""
        with torch.inference_mode():
            x = self.embeddings(batch.ids)
            media = None
            if batch.media_embeds is not None:
                embeds = batch.media_embeds.to(x.device, x.dtype)
                x.index_copy_(0, batch.media_rows, embeds[:, : self.hidden_size])
                media = batch.media_rows, embeds[:, self.hidden_size :]
            block_size = kv[0][0].shape[1]
            attend = self.ops.plan_attention(batch.q_lens, batch.kv_lens, batch.block_tables, block_size)
            rotation = self.rotation(batch)
            step = LayerInputs(
                angles=rotation.angles, query_scale=rotation.scales, slots=batch.slots, attend=attend, media=media
            )
            return self.decoder(x, kv, step, batch.sample_rows)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Of some or all rows that `forward` gave: float32 [S, vocab]."""
        with torch.inference_mode():
            if hidden.shape[0] == 0:
                return torch.empty((0, self.vocab_size), dtype=torch.float32, device=hidden.device)
            return self.head(hidden).float()

    def embeddings(self, ids: Tensor) -> Tensor:
        """int64 [T] -> [T, hidden]"""
        return self.embed(ids)

    def rotation(self, batch: ForwardBatch) -> Rotation:
        """What of a step is chosen on the host, by its lengths, before the decoder runs."""
        with torch.inference_mode():
            return Rotation(
                angles=self.ops.rotary_angles(*self.rope.angles(batch)),
                scales=self.logn.scales(batch) if self.logn else None,
            )
