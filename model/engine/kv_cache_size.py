"""How large the paged KV cache is: a share of the memory that is free for it, or what was asked for.

How many tokens one block has is a setting (--block-size); model/device.py says which sizes a device takes, and why.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from configs.checkpoint import CheckpointError
from configs.machine import free_host_bytes
from configs.serve import GIB, EngineConfig
from model.device import block_size, embedding_bytes, free_bytes, share_of
from model.engine.kv_blocks import CacheSize
from model.engine.messages import StartEngine
from model.engine.profile import Profile, profile_on_device
from model.engine.runner import reserved_for_graphs
from model.engine.scheduling.step_budget import step_tokens
from model.forward_batch import KVSpec
from model.net.multimodal import MultimodalLM
from model.staging.graphs import Refused

HOST_SHARE = 0.5  # beside the cache lie activations, encoder peaks, embeddings, workers, page cache
DEVICE_SHARE = 0.9  # all of these are measured or counted; a tenth is for what the allocator cannot join


class CacheTooSmall(CheckpointError):
    """The cache would not hold a single block. The message names the setting."""


class CacheTooLarge(CheckpointError):
    """The cache that was asked for by size is larger than what is left for it. The message names the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemory:
    """What the cache may take a share of, and no more than."""

    nbytes: int
    share: float = HOST_SHARE  # where --kv-cache-share is absent
    words: str = "free"  # what these bytes are
    remedy: str = ""  # where they hold no block


def alone(size: CacheSize) -> CacheSize:
    """What an engine of one process agrees on."""
    return size


def size_on_device(
    model: MultimodalLM, start: StartEngine, max_model_len: int, agree: Callable[[CacheSize], CacheSize] = alone,
    refused: Refused = str,
) -> tuple[CacheSize, Profile]:  # fmt: skip
    """The cache that a device has room for. All other memory is measured first, over a smaller cache.

    Weights are loaded. agree: on a size that every rank has room for; all measure the same steps then. One that has
    none raises before it agrees, so that no other goes on. refused: as of `captured`. Raises CacheTooSmall,
    CacheTooLarge and DeviceError.
    """
    config, spec, itemsize = start.engine, model.kv, model.dtype.itemsize
    reserved, free = reserved_for_graphs(config, model.device), on_device(free_bytes(model.device), config)
    most = cache_size(spec, itemsize, config, max_model_len, free, reserved=reserved)
    profile = profile_on_device(model, trial_size(agree(most), config), config, start.largest, refused)
    left = on_device(free_bytes(model.device), config, profile)
    return agree(cache_size(spec, itemsize, config, max_model_len, left, reserved=reserved)), profile


def on_device(free: int, config: EngineConfig, profile: Profile | None = None) -> FreeMemory:
    """What a device has left for the cache beside embeddings and all that was measured.

    free: bytes, with the weights loaded.
    """
    parts = {
        "activations and encoders": profile.working if profile else 0,
        "graphs": (profile and profile.graphs) or 0,
        "embeddings": embedding_bytes(config),
    }
    kept = ", ".join(f"{_gib(nbytes)} for {what}" for what, nbytes in parts.items() if nbytes)
    return FreeMemory(
        nbytes=max(free - sum(parts.values()), 0),
        share=DEVICE_SHARE,
        words="left",
        remedy=f"; of {_gib(free)} free on the device with the weights loaded it keeps {kept}: end what else runs "
        "there, or lower --max-pixels, --max-video-pixels, --max-batched-tokens, --max-seqs or --embedding-mib",
    )


def cache_size(
    spec: KVSpec, itemsize: int, config: EngineConfig, max_model_len: int, memory: FreeMemory | None = None,
    *, reserved: int = 0,
) -> CacheSize:  # fmt: skip
    """The blocks that fit, at most what `max_seqs` full sequences use. Raises CacheTooSmall and CacheTooLarge.

    memory: that a size by name must fit as well; None: what the host has free, where none is named. reserved: blocks
    beside those of sequences.
    """
    tokens = block_size(config)
    block_bytes = spec.bytes_per_token(itemsize) * tokens
    useful = _blocks(max_model_len, tokens) * config.max_seqs + reserved
    nbytes, bound, remedy = _allowed(config, memory)
    n_blocks = min(nbytes // block_bytes, useful)
    if n_blocks <= reserved:
        beside = f" beside {reserved} for the padding of graphs" if reserved else ""
        raise CacheTooSmall(
            f"{bound}: {nbytes} bytes hold no block of the KV cache{beside}, one takes {block_bytes} (--block-size "
            f"{tokens} tokens){remedy}"
        )
    if memory is not None and n_blocks * block_bytes > memory.nbytes:  # only a size by name can be
        raise CacheTooLarge(
            f"{bound}: {_gib(n_blocks * block_bytes)} of KV cache are more than the {_gib(memory.nbytes)} "
            f"{memory.words}: lower it, or leave it away{memory.remedy}"
        )
    return CacheSize(
        n_blocks=n_blocks,
        block_size=tokens,
        nbytes=n_blocks * block_bytes,
        max_model_len=min(max_model_len, (n_blocks - reserved) * tokens),
        reserved=reserved,
        bound=bound if n_blocks < useful else "--max-seqs x --max-model-len, all that can be used",
    )


def trial_size(most: CacheSize, config: EngineConfig) -> CacheSize:
    """The size of the cache that peaks are measured over: a full step with the longest sequence fits, and little more.

    most: the cache if nothing else needed memory. At most half of it, so that the peaks have room beside the trial.
    """
    step = max(_blocks(step_tokens(config), most.block_size), _blocks(most.max_model_len, most.block_size))
    n_blocks = min(step + config.max_seqs, max(most.n_blocks // 2, 1))
    return replace(
        most,
        n_blocks=n_blocks,
        nbytes=most.nbytes // most.n_blocks * n_blocks,
        max_model_len=min(most.max_model_len, n_blocks * most.block_size),
    )


def _allowed(config: EngineConfig, memory: FreeMemory | None) -> tuple[int, str, str]:
    """Bytes, the setting that says so, and what to do where they are too few."""
    if config.kv_cache_bytes is not None:
        return config.kv_cache_bytes, share_of("--kv-cache-mib", config), ""
    n = config.tensor_parallel
    found = memory or FreeMemory(nbytes=free_host_bytes() // n, words="free" if n == 1 else "free for each rank")
    share = found.share if config.kv_cache_share is None else config.kv_cache_share
    return int(found.nbytes * share), f"--kv-cache-share {share:g} of {_gib(found.nbytes)} {found.words}", found.remedy


def _blocks(tokens: int, each: int) -> int:
    return -(-tokens // each)


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.4g} GiB"
