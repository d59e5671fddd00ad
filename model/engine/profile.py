"""Peak memory of the largest media and of one full step: computed by shapes, or measured on a device."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from configs.serve import EngineConfig
from model import device
from model.engine.kv_cache import CacheSize, device_embeddings
from model.engine.messages import LargestItem
from model.family import BOUNDS
from model.forward_batch import ForwardBatch, KVCache
from model.live_bytes import peak_by_shapes
from model.net.multimodal import MultimodalLM

# Float32 copies of the sampled rows' logits that live at once when a step asks for everything: the logits, their
# log-probabilities, the drawn rows, probabilities, a sort's values and (twice as wide) indices, cumulative sums twice.
SAMPLER_COPIES = 9

Row = tuple[str, int, str]  # line, bytes, the setting that decides it
Capture = Callable[[MultimodalLM, KVCache, CacheSize], object]
"""Captures the graphs of decodes over a cache; they live as long as what it returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Bytes beside weights, cache and embeddings."""

    encoders: Mapping[str, tuple[int, int]]  # by kind: bytes at the peak of the largest item, and its tokens
    step: int  # bytes at the peak of one full step
    measured: bool  # on the device; else computed from shapes
    fixed: frozenset[str] = frozenset()  # kinds whose one size is the model's: no setting makes them smaller
    held: int = 0  # what torch's allocator held after all of them: whole segments, some of which only one can use
    graphs: int = 0  # what the captured graphs of decodes take, for as long as the engine lives

    @property
    def working(self) -> int:
        """Encoders and steps take turns, so that the largest of them decides."""
        return max(self.held, self.step, *(nbytes for nbytes, _ in self.encoders.values()))


def memory_rows(weight_bytes: int, size: CacheSize, config: EngineConfig, profile: Profile) -> tuple[Row, ...]:
    how = "measured" if profile.measured else "computed"
    together = "activations and encoders", profile.working, "kept for the largest of them (measured)"
    return (
        ("weights", weight_bytes, "--dtype"),
        *(
            (f"encoder peak, {kind}", nbytes, f"{_setting(kind, profile)} ({n_tokens} tokens, {how})")
            for kind, (nbytes, n_tokens) in profile.encoders.items()
        ),
        ("activations of a step", profile.step, f"--max-batched-tokens, --max-seqs ({how})"),
        *((together,) if profile.measured else ()),
        *((("graphs of decodes", profile.graphs, "--max-seqs (measured)"),) if profile.graphs else ()),
        ("KV cache", size.nbytes, size.bound),
        *_embeddings(config, profile),
    )


def _embeddings(config: EngineConfig, profile: Profile) -> tuple[Row, ...]:
    """On a CPU there is one row, for one copy."""
    most, setting = config.embedding_bytes, "--embedding-mib"
    if not profile.measured:
        return (("embeddings, at most", most, setting),)
    here = device_embeddings(config)
    return (
        ("embeddings, at most", here, setting if here == most else "fixed: what more there is lies in host memory"),
        ("embeddings in host memory, at most", most, setting),
    )


def _setting(kind: str, profile: Profile) -> str:
    return "fixed by the model" if kind in profile.fixed else BOUNDS[kind]


def profile_by_shapes(
    model: MultimodalLM, size: CacheSize, config: EngineConfig, largest: Sequence[LargestItem]
) -> Profile:
    """Run the largest items and two full steps without memory. `model` is built on the device "meta"."""
    kv = model.kv_cache(size.n_blocks, size.block_size)
    return _profile(model, kv, size, config, largest, peak=lambda run, _: peak_by_shapes(run), measured=False)


def profile_on_device(
    model: MultimodalLM, trial: CacheSize, config: EngineConfig, largest: Sequence[LargestItem],
    capture: Capture | None = None,
) -> Profile:  # fmt: skip
    """Run them on a device that counts its memory, over a cache of `trial` that is free again afterwards.

    Graphs are captured to see what they take; they know the trial's addresses and end with it. Raises DeviceError
    for what the device cannot hold.
    """
    where = model.device
    with device.out_of_memory(where, "a KV cache to measure over", "--kv-cache-mib"):
        kv = model.kv_cache(trial.n_blocks, trial.block_size)

    def peak(run: Callable[[], object], of: tuple[str, str]) -> int:
        with device.out_of_memory(where, *of):
            return device.peak_bytes(where, run)

    found = _profile(model, kv, trial, config, largest, peak=peak, measured=True)
    held = device.given_back(where)
    if capture is None:
        return replace(found, held=held)
    with device.out_of_memory(where, "the graphs of decodes", "--max-seqs"):
        graphs = device.lasting_bytes(where, functools.partial(capture, model, kv, trial))
    return replace(found, held=held, graphs=graphs)


def _profile(
    model: MultimodalLM, kv: KVCache, size: CacheSize, config: EngineConfig, largest: Sequence[LargestItem],
    *, peak: Callable[[Callable[[], object], tuple[str, str]], int], measured: bool,
) -> Profile:  # fmt: skip
    """peak: bytes that a run takes, given with its name and the setting that makes it smaller."""
    fixed = frozenset(item.kind for item in largest if item.fixed)
    encoders: dict[str, tuple[int, int]] = {}
    for item in largest:
        knob = "--dtype bfloat16" if item.fixed else BOUNDS[item.kind]
        run = functools.partial(encode_dummy, model, item)
        encoders[item.kind] = (peak(run, (f"the largest {item.kind}", knob)), item.n_tokens)
    knobs = "--max-batched-tokens or --max-seqs"
    steps = [
        peak(functools.partial(_forward, model, size, kv, lengths), ("a full step", knobs))
        for lengths in full_steps(size, config)
    ]
    logits = min(config.max_seqs, config.max_batched_tokens) * model.vocab_size * torch.float32.itemsize
    return Profile(encoders=encoders, step=max(*steps, SAMPLER_COPIES * logits), measured=measured, fixed=fixed)


def _forward(model: MultimodalLM, size: CacheSize, kv: KVCache, lengths: tuple[list[int], list[int]]) -> Tensor:
    return model.forward(dummy_step(model, size, *lengths), kv)


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
