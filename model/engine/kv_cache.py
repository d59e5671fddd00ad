"""The size of the paged KV cache: a share of the memory that is free, or what was asked for."""

from collections.abc import Callable
from dataclasses import dataclass

from configs.checkpoint import CheckpointError
from configs.serve import GIB, EngineConfig
from model.forward_batch import KVSpec
from model.host_memory import free_host_bytes


class CacheTooSmall(CheckpointError):
    """The cache would hold not one block. The message names the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    n_blocks: int  # with the reserved ones
    block_size: int  # tokens
    nbytes: int
    max_model_len: int  # tokens of one sequence: what was asked for, at most what the cache holds
    bound: str = "--kv-cache-mib"  # the setting that decided, as the table at start shows it
    reserved: int = 0  # blocks at the end that no sequence gets: the padding of graphs is written there

    @property
    def usable(self) -> int:
        """Blocks for sequences."""
        return self.n_blocks - self.reserved


def cache_size(
    spec: KVSpec,
    itemsize: int,
    config: EngineConfig,
    max_model_len: int,
    free_bytes: Callable[[], int] = free_host_bytes,
    reserved: int = 0,
) -> CacheSize:
    """The blocks that fit, at most what `max_seqs` full sequences use. Raises CacheTooSmall.

    free_bytes: of the memory that the cache will lie in, now that the weights are loaded.
    reserved: blocks beside those of sequences.
    """
    block_bytes = spec.bytes_per_token(itemsize) * config.block_size
    useful = -(-max_model_len // config.block_size) * config.max_seqs + reserved
    nbytes, bound = _allowed(config, free_bytes)
    n_blocks = min(nbytes // block_bytes, useful)
    if n_blocks <= reserved:
        beside = f" beside {reserved} for the padding of graphs" if reserved else ""
        raise CacheTooSmall(
            f"{bound}: {nbytes} bytes hold no block of the KV cache{beside}, one takes {block_bytes} (--block-size "
            f"{config.block_size} tokens)"
        )
    return CacheSize(
        n_blocks=n_blocks,
        block_size=config.block_size,
        nbytes=n_blocks * block_bytes,
        max_model_len=min(max_model_len, (n_blocks - reserved) * config.block_size),
        reserved=reserved,
        bound=bound if n_blocks < useful else "--max-seqs x --max-model-len, all that can be used",
    )


def _allowed(config: EngineConfig, free_bytes: Callable[[], int]) -> tuple[int, str]:
    """Bytes, and the setting that says so."""
    if config.kv_cache_bytes is not None:
        return config.kv_cache_bytes, "--kv-cache-mib"
    free = free_bytes()
    return int(free * config.kv_cache_share), f"--kv-cache-share {config.kv_cache_share:g} of {free / GIB:.4g} GiB free"
