"""One engine step as tensors, and the KV cache it works on."""

from dataclasses import dataclass

from torch import Tensor

KVCache = list[tuple[Tensor, Tensor]]
"""For each decoder layer (key, value), each [blocks, block_size, kv_heads, cached_dim] as `Ops.kv_cache` made them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec:
    """What one token occupies in the cache: `layers` times a key and a value of [kv_heads, cached_dim]."""

    layers: int
    kv_heads: int
    head_dim: int
    cached_dim: int  # `Ops.padded_head_dim` of it: more where a device pads heads
    grouped: bool = False  # several query heads share one of these

    def bytes_per_token(self, itemsize: int) -> int:
        return 2 * self.layers * self.kv_heads * self.cached_dim * itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """One engine step: T new tokens of B sequences, packed one after the other. A decode is a chunk of one token."""

    ids: Tensor  # int64 [T]; a placeholder of media holds its ordinary id
    positions: Tensor  # int64 [3, T]: time, height, width
    media_rows: Tensor  # int64 [M]: rows of the batch that media embeddings overwrite
    media_embeds: Tensor | None  # [M, media_width], any float dtype; None exactly when M == 0
    slots: Tensor  # int64 [T]: block * block_size + offset of each new token; never -1, no slot twice
    block_tables: Tensor  # int32 [B, max_blocks]; what follows a sequence's last block is never followed
    q_lens: tuple[int, ...]  # host ints: new tokens of each sequence, in batch order; each >= 1, sum = T
    kv_lens: tuple[int, ...]  # host ints: tokens of each sequence in the cache after this step; kv_lens >= q_lens
    sample_rows: Tensor  # int64 [S]: rows whose logits are wanted; S may be 0
    # Host ints: tokens of each sequence's prompt, the same in every step of its life. Read by length-dependent ropes.
    prompt_lens: tuple[int, ...] = ()
