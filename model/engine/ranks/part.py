"""One rank's part of a model: its weights, and how much cache there is room for beside them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import torch

from configs.checkpoint import Checkpoint
from configs.serve import EngineConfig
from model.device import DeviceError, block_size, check_cache, resolve, with_step_of
from model.engine.kv_blocks import CacheSize
from model.engine.kv_cache_size import alone, cache_size, size_on_device
from model.engine.messages import StartEngine
from model.engine.profile import Profile
from model.engine.ranks.link import CacheBlocks, DeviceFound, RankLink, common, fewest, refused_anywhere
from model.family import Family
from model.net.multimodal import MultimodalLM
from model.ops.collectives import ALONE, join
from model.ops.load import load_ops
from model.registry import family_of
from model.weights import Weights

OnRead = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """What each rank has of a checkpoint, and room for."""

    checkpoint: Checkpoint
    family: Family
    model: MultimodalLM
    weight_bytes: int
    config: EngineConfig  # with what was left open, and of the whole server's memory this rank's share
    size: CacheSize
    profile: Profile | None


def load_part(start: StartEngine, further: Callable[[], None], on_read: OnRead, link: RankLink | None) -> ModelPart:
    """The weights of this rank, and the size of its cache, on which all ranks agree."""
    config = of_one_rank(start.engine)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    checkpoint = Checkpoint(Path(start.checkpoint))
    family = family_of(checkpoint)
    device, dtype = resolve(config.device, config.dtype, family.config(checkpoint), checkpoint.config, rank=start.rank)
    config = with_step_of(device.type, config)
    family.check_device(device.type)
    max_model_len = min(start.max_model_len, config.max_model_len or start.max_model_len)
    config = msgspec.structs.replace(config, block_size=block_size(config, device.type))
    start = msgspec.structs.replace(start, engine=config)
    check_cache(device.type, block_size(config), max_model_len)
    ranks, agree = ALONE, alone
    if link is not None:
        check_devices(link, device.type)
        ranks = join(start.rank, config.tensor_parallel, Path(f"/proc/self/fd/{start.meeting}"), device)
        agree = partial(smallest, link)
    ops = load_ops(device, dtype, checks=config.check_launches, ranks=ranks)

    def read(done: int, total: int) -> None:
        further()
        on_read(done, total)

    weights = Weights(checkpoint, family.renames, dtype, device, family.skips, read)
    model = family.build(checkpoint, weights, ops)
    profile = None  # of a CPU nothing is run: the largest item takes it minutes, and half of the memory is left
    if device.type == "cpu":
        size = agree(cache_size(model.kv, dtype.itemsize, config, max_model_len))
    else:
        size, profile = size_on_device(model, start, max_model_len, agree, partial(refused_anywhere, link))
    further()
    return ModelPart(
        checkpoint=checkpoint, family=family, model=model, weight_bytes=weights.taken_bytes, config=config, size=size,
        profile=profile,
    )  # fmt: skip


def check_devices(link: RankLink, device: str) -> None:
    """Raises DeviceError unless all ranks compute on a CPU, or on an NPU each. device: what this one found."""
    found = link.agree(DeviceFound(device), common).kind
    if not found:
        raise DeviceError(
            f"--tensor-parallel: not every rank found the same: {device} on rank {link.rank}; say --device"
        )
    check_kind(found)


def check_kind(kind: str) -> None:
    """Raises DeviceError for devices of which several do not serve one model."""
    if kind not in ("cpu", "npu"):
        raise DeviceError(f"--tensor-parallel: of {kind} one device is served: take --tensor-parallel 1")


def of_one_rank(config: EngineConfig) -> EngineConfig:
    """With its share of the memory that is said of the whole server."""
    n, cache = config.tensor_parallel, config.kv_cache_bytes
    return msgspec.structs.replace(
        config, embedding_bytes=config.embedding_bytes // n, kv_cache_bytes=None if cache is None else cache // n
    )


def smallest(link: RankLink, size: CacheSize) -> CacheSize:
    """The cache that every rank has room for: blocks are the same on all."""
    n = link.agree(CacheBlocks(size.n_blocks), fewest).n
    if n == size.n_blocks:
        return size
    return replace(
        size,
        n_blocks=n,
        nbytes=size.nbytes // size.n_blocks * n,
        max_model_len=min(size.max_model_len, (n - size.reserved) * size.block_size),
        bound=f"{size.bound}, on the rank that has least",
    )
