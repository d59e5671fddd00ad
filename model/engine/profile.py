"""Peak memory of the largest media and of one full step, measured on a device; and the table of all memory."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from configs.serve import EngineConfig
from model import device
from model.engine.kv_blocks import CacheSize
from model.engine.messages import LargestItem
from model.engine.runner import captured
from model.engine.sampling.sampler import sampling_bytes
from model.engine.scheduling.step_budget import max_encoder_tokens, step_tokens
from model.family import BOUNDS
from model.forward_batch import ForwardBatch, KVCache
from model.net.multimodal import MultimodalLM
from model.staging.graphs import Refused

MemoryRow = tuple[str, int, str]  # line, bytes, the setting that decides it


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Bytes beside weights, cache and embeddings."""

    encoders: Mapping[str, tuple[int, int]]  # by kind: bytes at the peak of the largest call, and its tokens
    step: int  # bytes at the peak of one full step
    fixed: frozenset[str] = frozenset()  # kinds whose one size is the model's: no setting makes them smaller
    several: frozenset[str] = frozenset()  # kinds of which a step's budget allows more than one of the largest
    held: int = 0  # what torch's allocator held after all of them: whole segments, some of which only one can use
    graphs: int | None = None  # what the captured graphs of decodes take, while the engine lives; None: there are none

    @property
    def working(self) -> int:
        """Bytes of working memory: encoders and steps take turns, so the largest of them counts."""
        return max(self.held, self.step, *(nbytes for nbytes, _ in self.encoders.values()))


def memory_rows(
    weight_bytes: int, size: CacheSize, config: EngineConfig, profile: Profile | None
) -> tuple[MemoryRow, ...]:
    """profile: None on a CPU, where nothing is measured, and embeddings are one copy."""
    weights, cache = ("weights", weight_bytes, "--dtype"), ("KV cache", size.nbytes, size.bound)
    most, setting = config.embedding_bytes, device.share_of("--embedding-mib", config)
    if profile is None:
        return weights, cache, ("embeddings, at most", most, setting)
    here = device.embedding_bytes(config)
    return (
        weights,
        *(
            (f"encoder peak, {kind}", nbytes, f"{_setting(kind, profile)} ({n_tokens} tokens, measured)")
            for kind, (nbytes, n_tokens) in profile.encoders.items()
        ),
        ("activations of a step", profile.step, "--max-batched-tokens, --max-seqs (measured)"),
        ("activations and encoders", profile.working, "kept for the largest of them (measured)"),
        *((("graphs of decodes", profile.graphs, "--max-seqs (measured)"),) if profile.graphs else ()),
        cache,
        ("embeddings, at most", here, setting if here == most else "fixed: what more there is lies in host memory"),
        ("embeddings in host memory, at most", most, setting),
    )


def _setting(kind: str, profile: Profile) -> str:
    if kind in profile.several:
        return "--max-encoder-tokens"
    return "fixed by the model" if kind in profile.fixed else BOUNDS[kind]


def profile_on_device(
    model: MultimodalLM, trial: CacheSize, config: EngineConfig, largest: Sequence[LargestItem], refused: Refused = str
) -> Profile:
    """Run the largest items and two full steps over a cache of `trial`, which is free again afterwards.

    Graphs are captured to see what they take; they know the trial's addresses and end with it. refused: as of
    `captured`. Raises DeviceError for what the device cannot hold.
    """
    where = model.device
    with device.out_of_memory(where, "a KV cache to measure over", "--kv-cache-mib"):
        kv = model.kv_cache(trial.n_blocks, trial.block_size)
    encoders: dict[str, tuple[int, int]] = {}
    for item in largest:
        knob = "--dtype bfloat16" if item.fixed else BOUNDS[item.kind]
        n = items_of_a_call(item, config)
        what = f"the largest {item.kind}"
        if n > 1:
            what, knob = f"{n} of the largest {item.kind} in one call", "--max-encoder-tokens"
        with device.out_of_memory(where, what, knob):
            nbytes = device.peak_bytes(where, functools.partial(encode_dummy, model, item, n))
        encoders[item.kind] = nbytes, n * item.n_tokens
    with device.out_of_memory(where, "a full step", "--max-batched-tokens or --max-seqs"):
        steps = [
            device.peak_bytes(where, functools.partial(_run, model, trial, kv, *lengths))
            for lengths in full_steps(trial, config)
        ]
    held = device.given_back(where)
    graphs = None
    if trial.reserved:
        with device.out_of_memory(where, "the graphs of decodes", "--max-seqs"):
            graphs = device.lasting_bytes(where, functools.partial(captured, model, kv, trial, config, refused=refused))
    return Profile(
        encoders=encoders,
        step=max(*steps, sampler_bytes(config, model.vocab_size)),
        fixed=frozenset(item.kind for item in largest if item.fixed),
        several=frozenset(item.kind for item in largest if items_of_a_call(item, config) > 1),
        held=held,
        graphs=graphs,
    )


def sampler_bytes(config: EngineConfig, vocab_size: int) -> int:
    """Of a step whose rows ask for everything, beside the network's: known without running it."""
    rows = min(config.max_seqs, step_tokens(config))
    return sampling_bytes(rows, vocab_size)


def _run(model: MultimodalLM, size: CacheSize, kv: KVCache, q_lens: list[int], kv_lens: list[int]) -> Tensor:
    return model.compute_logits(model.forward(dummy_step(model, size, q_lens, kv_lens), kv))


def items_of_a_call(item: LargestItem, config: EngineConfig) -> int:
    """How many of the largest items one call of an encoder gets: as a step's budget allows, at least one."""
    return max(-(-max_encoder_tokens(config) // item.n_tokens), 1)


def encode_dummy(model: MultimodalLM, item: LargestItem, n: int = 1) -> list[Tensor]:
    """Run one call of an encoder with so many items of that size."""
    encoder = model.encoders[item.kind]
    arrays = [torch.zeros(encoder.input_shape(item.grid), dtype=encoder.dtype, device=model.device) for _ in range(n)]
    return model.encode(item.kind, arrays, [item.grid] * n)


def full_steps(size: CacheSize, config: EngineConfig) -> list[tuple[list[int], list[int]]]:
    """(new tokens, tokens in the cache) of each sequence: in a step of new prompts, and of a long one and decodes.

    No block is shared, so that the sequences of a step never name more blocks than the cache has.
    """
    budget = min(step_tokens(config), size.n_blocks * size.block_size)
    prompt = size.max_model_len // size.block_size * size.block_size or size.max_model_len  # leaves no part of a block
    n_fresh = min(config.max_seqs, size.n_blocks, -(-budget // prompt))
    fresh = [min(prompt, budget - start) for start in range(0, n_fresh * prompt, prompt)]
    longest = -(-size.max_model_len // size.block_size)  # blocks
    decodes = min(config.max_seqs, budget, size.n_blocks - longest + 1) - 1
    each = min((size.n_blocks - longest) // decodes * size.block_size, size.max_model_len) if decodes else 0
    chunk = min(budget - decodes, size.max_model_len)
    return [(fresh, fresh), ([chunk, *[1] * decodes], [size.max_model_len, *[each] * decodes])]


def dummy_step(model: MultimodalLM, size: CacheSize, q_lens: list[int], kv_lens: list[int]) -> ForwardBatch:
    """Run one step of these lengths, with media embeddings in as many rows as its longest chunk has."""
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
        media_embeds=torch.zeros((media, model.media_width), dtype=model.dtype, device=device),
        slots=torch.arange(n, device=device),
        block_tables=tables.to(device),
        q_lens=tuple(q_lens),
        kv_lens=tuple(kv_lens),
        sample_rows=ends.to(device),
        prompt_lens=tuple(kv_lens),
    )
