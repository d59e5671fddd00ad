"""The size of the paged KV cache."""

from dataclasses import dataclass

from configs.checkpoint import CheckpointError
from configs.serve import EngineConfig
from model.forward_batch import KVSpec


class CacheTooSmall(CheckpointError):
    """The configured cache holds not one block. The message names the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    n_blocks: int
    block_size: int  # tokens
    nbytes: int
    max_model_len: int  # tokens of one sequence: what was asked for, at most what the cache holds


def cache_size(spec: KVSpec, itemsize: int, config: EngineConfig, max_model_len: int) -> CacheSize:
    """The blocks that `kv_cache_bytes` hold, at most what `max_seqs` full sequences use. Raises CacheTooSmall."""
    block_bytes = spec.bytes_per_token(itemsize) * config.block_size
    useful = -(-max_model_len // config.block_size) * config.max_seqs
    n_blocks = min(config.kv_cache_bytes // block_bytes, useful)
    if n_blocks < 1:
        raise CacheTooSmall(
            f"--kv-cache-mib: {config.kv_cache_bytes} bytes hold no block of the KV cache, one takes {block_bytes}"
        )
    return CacheSize(
        n_blocks=n_blocks,
        block_size=config.block_size,
        nbytes=n_blocks * block_bytes,
        max_model_len=min(max_model_len, n_blocks * config.block_size),
    )
