"""The size of the paged KV cache: a share of the memory that is free for it, or what was asked for."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from configs.checkpoint import CheckpointError
from configs.serve import GIB, MIB, EngineConfig
from model.forward_batch import KVSpec
from model.host_memory import free_host_bytes

HOST_SHARE = 0.5  # beside the cache lie activations, encoder peaks, embeddings, workers, page cache
DEVICE_SHARE = 0.9  # all of these are measured or counted; a tenth is for what the allocator cannot join
DEVICE_EMBEDDINGS = 256 * MIB  # that stay on the device between the steps of their prompts


class CacheTooSmall(CheckpointError):
    """The cache would hold not one block. The message names the setting."""


class CacheTooLarge(CheckpointError):
    """The cache that was asked for by size is larger than what is free. The message names the setting."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The memory that the cache may take a share of."""

    nbytes: int
    share: float = HOST_SHARE  # where --kv-cache-share is absent
    words: str = "free"  # what these bytes are
    remedy: str = ""  # of a room that holds no block


def host_room() -> Room:
    """What is free on the CPU. Weights are loaded; all else that is needed beside the cache is in its other half."""
    return Room(nbytes=free_host_bytes())


def device_embeddings(config: EngineConfig) -> int:
    """Bytes of embeddings that a device holds at most, but for the medium that is being encoded."""
    return min(DEVICE_EMBEDDINGS, config.embedding_bytes)


def device_room(free: int, working: int, graphs: int, embeddings: int) -> Room:
    """What a device has left. free: with the weights loaded; the other bytes are kept for what they say."""
    parts = {"activations and encoders": working, "graphs": graphs, "embeddings": embeddings}
    kept = ", ".join(f"{_gib(nbytes)} for {what}" for what, nbytes in parts.items() if nbytes)
    return Room(
        nbytes=max(free - working - graphs - embeddings, 0),
        share=DEVICE_SHARE,
        words="left",
        remedy=f"; of {_gib(free)} free on the device with the weights loaded it keeps {kept}: end what else runs "
        "there, or lower --max-pixels, --max-video-pixels, --max-batched-tokens, --max-seqs or --embedding-mib",
    )


def cache_size(
    spec: KVSpec, itemsize: int, config: EngineConfig, max_model_len: int, room: Callable[[], Room] = host_room,
    *, reserved: int = 0,
) -> CacheSize:  # fmt: skip
    """The blocks that fit, at most what `max_seqs` full sequences use. Raises CacheTooSmall.

    room: asked only where the configuration names no size; reserved: blocks beside those of sequences.
    """
    block_bytes = spec.bytes_per_token(itemsize) * config.block_size
    useful = _blocks(max_model_len, config.block_size) * config.max_seqs + reserved
    nbytes, bound, remedy = _allowed(config, room)
    n_blocks = min(nbytes // block_bytes, useful)
    if n_blocks <= reserved:
        beside = f" beside {reserved} for the padding of graphs" if reserved else ""
        raise CacheTooSmall(
            f"{bound}: {nbytes} bytes hold no block of the KV cache{beside}, one takes {block_bytes} (--block-size "
            f"{config.block_size} tokens){remedy}"
        )
    return CacheSize(
        n_blocks=n_blocks,
        block_size=config.block_size,
        nbytes=n_blocks * block_bytes,
        max_model_len=min(max_model_len, (n_blocks - reserved) * config.block_size),
        reserved=reserved,
        bound=bound if n_blocks < useful else "--max-seqs x --max-model-len, all that can be used",
    )


def trial_size(most: CacheSize, config: EngineConfig) -> CacheSize:
    """Of the cache that peaks are measured over: a full step fits, with the longest sequence, and little more.

    most: the cache if nothing else needed memory. At most half of it, so that the peaks have room beside the trial.
    """
    step = max(_blocks(config.max_batched_tokens, most.block_size), _blocks(most.max_model_len, most.block_size))
    n_blocks = min(step + config.max_seqs, max(most.n_blocks // 2, 1))
    return replace(
        most,
        n_blocks=n_blocks,
        nbytes=most.nbytes // most.n_blocks * n_blocks,
        max_model_len=min(most.max_model_len, n_blocks * most.block_size),
    )


def check_free(size: CacheSize, free: int) -> None:
    """Raises CacheTooLarge where the cache is larger than the device has: only a size by name can be."""
    if size.nbytes > free:
        raise CacheTooLarge(
            f"--kv-cache-mib: {_gib(size.nbytes)} of KV cache are more than the {_gib(free)} that the device has free "
            "with the weights loaded: lower it, or leave it away"
        )


def _allowed(config: EngineConfig, room: Callable[[], Room]) -> tuple[int, str, str]:
    """Bytes, the setting that says so, and what to do where they are too few."""
    if config.kv_cache_bytes is not None:
        return config.kv_cache_bytes, "--kv-cache-mib", ""
    found = room()
    share = found.share if config.kv_cache_share is None else config.kv_cache_share
    return int(found.nbytes * share), f"--kv-cache-share {share:g} of {_gib(found.nbytes)} {found.words}", found.remedy


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.4g} GiB"
