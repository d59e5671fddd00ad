"""What each of N ranks would hold of a model and have room for: no tensor is read, and no device is opened."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec
import torch

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import GIB, EngineConfig
from configs.weight_files import weight_files
from model.device import DeviceError, block_size, check_cache, dtype_on, embedding_bytes, with_step_of
from model.engine.kv_blocks import CacheSize
from model.engine.kv_cache_size import FreeMemory, cache_size, on_device
from model.engine.profile import Profile, sampler_bytes
from model.engine.ranks.part import check_kind, of_one_rank
from model.engine.runner import graph_blocks
from model.family import Family
from model.forward_batch import KVSpec
from model.ops.collectives import Ranks
from model.ops.load import load_ops
from model.registry import family_of
from model.weight_shapes import META, AskedWeights, HeaderWeights
from model.weight_tensors import read_header

DECODERS = ("model.", "lm_head.", "transformer.h.", "transformer.wte.", "transformer.ln_f.")  # how their names begin


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """What each rank is to run on; it need not be here."""

    kind: str  # "npu", "cuda" or "cpu"
    nbytes: int  # of its memory; of a CPU what the host has free for a rank
    # Of that for activations, encoders and graphs, which a start measures; at least what samplers take.
    working: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """The first rank's, which has no less than any other."""

    nbytes: int
    decoder_bytes: int  # of these; the rest, towers and projectors, is whole on every rank
    kv: KVSpec
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCapacity:
    """One of so many ranks, as far as it is known where `refusal` says why they do not serve the model."""

    n: int
    weights: RankWeights | None = None
    embedding_bytes: int = 0  # on the device; of a CPU they lie in the half that the cache leaves
    left: int = 0  # bytes beside weights, working memory and embeddings
    room: CacheSize | None = None  # what these hold of the cache; of a CPU all of one that is asked for by size
    size: CacheSize | None = None  # what a server takes of that
    requests: int = 0  # of the longest that `room` holds at once
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    family: str
    dtype: torch.dtype
    block_size: int  # tokens
    no_headers: str  # why weights are counted from the architecture; "": by the headers of their files
    device: PlannedDevice  # with the working memory that is counted
    max_model_len: int
    ranks: tuple[RankCapacity, ...]

    @property
    def serves(self) -> bool:
        """Whether any of these numbers of ranks does."""
        return any(not one.refusal for one in self.ranks)


def capacity(
    checkpoint: Checkpoint, config: EngineConfig, device: PlannedDevice, max_model_len: int, ranks: Iterable[int]
) -> Capacity:  # fmt: skip
    """By the rules of a start. checkpoint: of sizes alone.

    Raises CheckpointError for a model that is not served whatever the number of ranks, and DeviceError for settings.
    """
    family, kind = family_of(checkpoint), device.kind
    family.check_device(kind)
    family.pixels(checkpoint)  # a start reads it, for its defaults, and refuses by it
    dtype = dtype_on(kind, config.dtype, family.config(checkpoint), checkpoint.config)
    config = msgspec.structs.replace(with_step_of(kind, config), block_size=block_size(config, kind))
    check_cache(kind, block_size(config), max_model_len)
    planner = _Planner(
        checkpoint=checkpoint, family=family, config=config, device=device, dtype=dtype, max_model_len=max_model_len,
        no_headers=_no_headers(checkpoint),
    )  # fmt: skip
    sampling = sampler_bytes(config, planner.weights(1).vocab_size)
    device = replace(device, working=max(device.working, sampling))
    planner = replace(planner, device=device)
    return Capacity(
        family=family.name,
        dtype=dtype,
        block_size=block_size(config),
        no_headers=planner.no_headers,
        device=device,
        max_model_len=max_model_len,
        ranks=tuple(planner.of(n) for n in ranks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    checkpoint: Checkpoint
    family: Family
    config: EngineConfig
    device: PlannedDevice
    dtype: torch.dtype
    max_model_len: int
    no_headers: str

    def weights(self, n: int) -> RankWeights:
        """Raises CheckpointError, as a start does."""
        ops = load_ops(META, self.dtype, ranks=Ranks(rank=0, n=n), kind=self.device.kind)
        shapes: AskedWeights | HeaderWeights = AskedWeights(self.dtype)
        if not self.no_headers:
            shapes = HeaderWeights(self.checkpoint, self.family.renames, self.dtype, self.family.skips)
        model = self.family.build(self.checkpoint, shapes, ops)
        decoder = sum(nbytes for name, nbytes in shapes.nbytes.items() if name.startswith(DECODERS))
        return RankWeights(
            nbytes=shapes.taken_bytes, decoder_bytes=decoder, kv=model.kv, vocab_size=model.vocab_size
        )  # fmt: skip

    def of(self, n: int) -> RankCapacity:
        """With the sentence that a start would say where so many do not serve it."""
        config = of_one_rank(msgspec.structs.replace(self.config, tensor_parallel=n))
        try:
            if n > 1:
                check_kind(self.device.kind)
            weights = self.weights(n)
        except (CheckpointError, DeviceError) as error:
            return RankCapacity(n=n, refusal=str(error))
        free = self.device.nbytes - weights.nbytes
        memory = self._memory(max(free, 0), config)
        found = RankCapacity(
            n=n, weights=weights, left=memory.nbytes,
            embedding_bytes=0 if self.device.kind == "cpu" else embedding_bytes(config),
        )  # fmt: skip
        if free <= 0:
            return replace(found, refusal=f"{_gib(weights.nbytes)} of weights are more than {_gib(self.device.nbytes)}")
        try:
            return self._with_cache(found, weights.kv, memory, config)
        except CheckpointError as error:
            return replace(found, refusal=str(error))

    def _memory(self, free: int, config: EngineConfig) -> FreeMemory:
        """free: bytes beside the weights."""
        if self.device.kind == "cpu":
            return FreeMemory(nbytes=free)
        return on_device(free, config, Profile(encoders={}, step=self.device.working))

    def _with_cache(self, found: RankCapacity, kv: KVSpec, memory: FreeMemory, config: EngineConfig) -> RankCapacity:
        """Raises CheckpointError where no block of the cache fits, or where one that is asked for by size does not.

        On a CPU a start compares the latter with nothing.
        """
        reserved = graph_blocks(config, self.device.kind) if self.device.kind == "npu" else 0
        asked = most = config.kv_cache_bytes
        compared = memory if asked is None or self.device.kind != "cpu" else None

        def sized(limits: EngineConfig) -> CacheSize:
            return cache_size(kv, self.dtype.itemsize, limits, self.max_model_len, compared, reserved=reserved)

        size = sized(config)
        if asked is not None and compared is not None:
            most = min(asked, compared.nbytes)  # of a larger one sequences may use less
        room = sized(msgspec.structs.replace(config, max_seqs=sys.maxsize, kv_cache_bytes=most))
        requests = room.usable // -(-self.max_model_len // room.block_size)
        tokens = room.usable * room.block_size
        short = (
            f"{tokens} tokens of KV cache are less than --max-model-len: it starts, and one request may have {tokens}"
        )
        return replace(found, room=room, size=size, requests=requests, refusal="" if requests else short)


def _no_headers(checkpoint: Checkpoint) -> str:
    """Why the headers of safetensors do not tell the weights; "" where they do."""
    try:
        for path in weight_files(checkpoint)[0]:
            if path.suffix == ".bin":
                return f"{path.name} is no file of safetensors"
            read_header(path)
    except CheckpointError as error:
        return str(error).removeprefix(f"{checkpoint.path}: ")
    return ""


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.4g} GiB"
