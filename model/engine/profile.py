"""Peak memory of the largest media and of one full step: computed by shapes, or measured on a device."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from configs.serve import EngineConfig
from model.engine.kv_cache import CacheSize
from model.engine.messages import LargestItem
from model.forward_batch import ForwardBatch, KVCache
from model.net.multimodal import MultimodalLM

# Float32 copies of the sampled rows' logits that live at once when a step asks for everything: the logits, their
# log-probabilities, the drawn rows, probabilities, a sort's values and (twice as wide) indices, cumulative sums twice.
SAMPLER_COPIES = 9
SETTINGS = {"image": "--max-pixels", "video": "--max-video-pixels", "audio": "--max-audio-seconds"}

Row = tuple[str, int, str]  # line, bytes, the setting that decides it


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Peak bytes beside weights and cache."""

    encoders: Mapping[str, tuple[int, int]]  # by kind: bytes at the peak of the largest item, and its tokens
    step: int  # bytes at the peak of one full step
    measured: bool  # on the device; else computed from shapes
    fixed: frozenset[str] = frozenset()  # kinds whose one size is the model's: no setting makes them smaller


def memory_rows(weight_bytes: int, size: CacheSize, config: EngineConfig, profile: Profile) -> tuple[Row, ...]:
    how = "measured" if profile.measured else "computed"
    return (
        ("weights", weight_bytes, "--dtype"),
        *(
            (f"encoder peak, {kind}", nbytes, f"{_setting(kind, profile)} ({n_tokens} tokens, {how})")
            for kind, (nbytes, n_tokens) in profile.encoders.items()
        ),
        ("activations of a step", profile.step, f"--max-batched-tokens, --max-seqs ({how})"),
        ("KV cache", size.nbytes, size.bound),
        ("embeddings, at most", config.embedding_bytes, "--embedding-mib"),
    )


def _setting(kind: str, profile: Profile) -> str:
    return "fixed by the model" if kind in profile.fixed else SETTINGS[kind]


def profile_by_shapes(
    model: MultimodalLM, size: CacheSize, config: EngineConfig, largest: Sequence[LargestItem]
) -> Profile:
    """Run the largest items and two full steps without memory. `model` is built on the device "meta"."""
    kv = model.kv_cache(size.n_blocks, size.block_size)
    return _profile(model, kv, size, config, largest, peak=_peak_by_shapes, measured=False)


def profile_on_device(
    model: MultimodalLM, kv: KVCache, size: CacheSize, config: EngineConfig, largest: Sequence[LargestItem]
) -> Profile:
    """Run them on a device that counts its memory. Overwrites `kv`, whose content must not matter yet."""
    device = torch.get_device_module(model.device)

    def peak(run: Callable[[], object]) -> int:
        device.synchronize()
        device.reset_peak_memory_stats()
        before = device.memory_allocated()
        run()
        device.synchronize()
        return int(device.max_memory_allocated() - before)

    return _profile(model, kv, size, config, largest, peak=peak, measured=True)


def _profile(
    model: MultimodalLM, kv: KVCache, size: CacheSize, config: EngineConfig, largest: Sequence[LargestItem],
    *, peak: Callable[[Callable[[], object]], int], measured: bool,
) -> Profile:  # fmt: skip
    encoders: dict[str, tuple[int, int]] = {}
    for item in largest:
        encoders[item.kind] = (peak(lambda item=item: encode_dummy(model, item)), item.n_tokens)  # type: ignore[misc]
    steps = [peak(lambda kvs=kvs: model.forward(dummy_step(model, size, *kvs), kv)) for kvs in full_steps(size, config)]  # type: ignore[misc]
    logits = min(config.max_seqs, config.max_batched_tokens) * model.vocab_size * torch.float32.itemsize
    fixed = frozenset(item.kind for item in largest if item.fixed)
    return Profile(encoders=encoders, step=max(*steps, SAMPLER_COPIES * logits), measured=measured, fixed=fixed)


def encode_dummy(model: MultimodalLM, item: LargestItem) -> Tensor:
    shape, dtype = model.media_shape(item.kind, item.grid), model.media_dtype(item.kind)
    return model.encode(item.kind, torch.zeros(shape, dtype=dtype, device=model.device), item.grid)


def full_steps(size: CacheSize, config: EngineConfig) -> list[tuple[list[int], list[int]]]:
    """(new tokens, tokens in the cache) of each sequence: in a step of new prompts, and of a long one and decodes.

    No block is shared, so that the sequences of a step never name more blocks than the cache has.
    """
    budget = min(config.max_batched_tokens, size.n_blocks * size.block_size)
    prompt = size.max_model_len // size.block_size * size.block_size or size.max_model_len  # leaves no part of a block
    n_fresh = min(config.max_seqs, size.n_blocks, -(-budget // prompt))
    fresh = [min(prompt, budget - start) for start in range(0, n_fresh * prompt, prompt)]
    longest = -(-size.max_model_len // size.block_size)  # blocks
    decodes = min(config.max_seqs, budget, size.n_blocks - longest + 1) - 1
    each = min((size.n_blocks - longest) // decodes * size.block_size, size.max_model_len) if decodes else 0
    chunk = min(budget - decodes, size.max_model_len)
    return [(fresh, fresh), ([chunk, *[1] * decodes], [size.max_model_len, *[each] * decodes])]


def dummy_step(model: MultimodalLM, size: CacheSize, q_lens: list[int], kv_lens: list[int]) -> ForwardBatch:
    """A step of these lengths, with media embeddings in as many rows as its longest chunk has."""
    device, n = model.device, sum(q_lens)
    media = max(q_lens)
    width = -(-max(kv_lens) // size.block_size)
    blocks = torch.arange(len(q_lens) * width, dtype=torch.int32) % size.n_blocks
    # Spread, so that nothing is found to lie in a row and is read without a copy: that is how a used cache looks.
    tables = blocks.view(len(q_lens), width).flip(1).contiguous()
    ends = torch.tensor(q_lens).cumsum(0) - 1
    return ForwardBatch(
        ids=torch.zeros(n, dtype=torch.int64, device=device),
        positions=torch.zeros((3, n), dtype=torch.int64, device=device),
        media_rows=torch.arange(media, device=device),
        media_embeds=torch.zeros((media, model.hidden_size), dtype=model.dtype, device=device),
        slots=torch.arange(n, device=device),
        block_tables=tables.to(device),
        q_lens=tuple(q_lens),
        kv_lens=tuple(kv_lens),
        sample_rows=ends.to(device),
        prompt_lens=tuple(kv_lens),
    )


def _peak_by_shapes(run: Callable[[], object]) -> int:
    with LiveBytes() as live, _FusedAttention():
        run()
    peak: int = live.peak
    return peak


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of live tensors that operations inside it made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: int = 0
        self.peak: int = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage_of(x)._cdata for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for found in tree_iter(out):
            if isinstance(found, Tensor) and _storage_of(found)._cdata not in given | self._known:
                self._count(_storage_of(found))
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        self._known.add(storage._cdata)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, address: int, nbytes: int) -> None:
        self._known.discard(address)
        self.live -= nbytes


def _storage_of(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


class _FusedAttention(TorchFunctionMode):
    """Attention without the scores of all pairs in memory, as the kernels of every served device do it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return torch.empty_like(args[0])
        return func(*args, **(kwargs or {}))
