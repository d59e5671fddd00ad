"""The size of the cache: stated bytes, useful tokens, and what that leaves for one sequence."""

import dataclasses
import re

import msgspec
import pytest
import torch

from configs.serve import GIB, MIB, EngineConfig
from model.device import EMBEDDINGS
from model.engine.kv_blocks import CacheSize
from model.engine.kv_cache_size import CacheTooLarge, CacheTooSmall, FreeMemory, cache_size, on_device, trial_size
from model.engine.profile import Profile, full_steps
from model.forward_batch import KVSpec
from model.net.multimodal import MultimodalLM
from model.ops.npu import NpuOps
from tests.tables import each_of

pytestmark = pytest.mark.network

SPEC = KVSpec(layers=2, kv_heads=2, head_dim=16, cached_dim=16)  # 128 elements a token
NBYTES = 128 * 4 * 16 * 10
CONFIG = EngineConfig(max_seqs=2, block_size=16, kv_cache_bytes=NBYTES)


def test_stated_bytes() -> None:
    size = cache_size(SPEC, 4, CONFIG, 1000)
    assert (size.n_blocks, size.block_size, size.nbytes) == (10, 16, NBYTES)
    assert size.max_model_len == 160  # what the cache holds
    assert cache_size(SPEC, 2, CONFIG, 1000).n_blocks == 20


def test_the_part_of_one_of_several_ranks_is_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a size by name, which the engine has divided by then, and of a share of the host's memory."""
    monkeypatch.setattr("model.engine.kv_cache_size.free_host_bytes", lambda: 8 * GIB)
    two = msgspec.structs.replace(CONFIG, tensor_parallel=2)
    assert cache_size(SPEC, 4, two, 1000).bound == "--kv-cache-mib / 2"
    share = msgspec.structs.replace(two, kv_cache_bytes=None, kv_cache_share=0.25)
    size = cache_size(SPEC, 4, share, 1 << 24)
    assert size.bound == "--kv-cache-share 0.25 of 4 GiB free for each rank" and size.nbytes == GIB
    one = msgspec.structs.replace(share, tensor_parallel=1)
    assert cache_size(SPEC, 4, one, 1 << 24).bound == "--kv-cache-share 0.25 of 8 GiB free"


def test_padded_heads_are_counted() -> None:
    padded = dataclasses.replace(SPEC, cached_dim=64)
    assert padded.bytes_per_token(2) == 4 * SPEC.bytes_per_token(2)
    size = cache_size(padded, 4, CONFIG, 1000)
    assert (size.n_blocks, size.nbytes, size.max_model_len) == (2, NBYTES // 10 * 8, 32)


def test_what_is_counted_is_what_is_made(model: MultimodalLM) -> None:
    for ops in (model.ops, NpuOps(torch.device("cpu"), torch.bfloat16)):
        whole = dataclasses.replace(model, ops=ops, decoder=dataclasses.replace(model.decoder, ops=ops))
        made = sum(part.nbytes for layer in whole.kv_cache(3, 128) for part in layer)
        assert made == 3 * 128 * whole.kv.bytes_per_token(ops.dtype.itemsize)
    assert (whole.kv.head_dim, whole.kv.cached_dim) == (16, 64)


def test_no_more_than_all_sequences_can_use() -> None:
    size = cache_size(SPEC, 4, CONFIG, 33)
    assert size.n_blocks == 6 and size.max_model_len == 33  # two sequences of three blocks


def test_a_rest_of_a_block_is_not_used() -> None:
    config = msgspec.structs.replace(CONFIG, kv_cache_bytes=NBYTES - 1)
    assert cache_size(SPEC, 4, config, 1000).n_blocks == 9


def test_less_than_a_block_is_an_error_that_names_the_setting() -> None:
    config = msgspec.structs.replace(CONFIG, kv_cache_bytes=8191)
    with pytest.raises(CacheTooSmall, match="--kv-cache-mib: 8191 .* 8192"):
        cache_size(SPEC, 4, config, 1000)


# ---- on a device: what is left of its memory beside all that is known

BLOCK = SPEC.bytes_per_token(2) * 128
DEVICE = EngineConfig(block_size=128, max_seqs=64)


def left(free: int, working: int = GIB, graphs: int = GIB // 2) -> FreeMemory:
    """Of a device that keeps a quarter of a GiB for embeddings."""
    return on_device(free, DEVICE, Profile(encoders={}, step=working, graphs=graphs))


def test_a_device_keeps_what_was_measured_and_gives_nine_tenths_of_the_rest() -> None:
    memory = left(40 * GIB, working=3 * GIB)
    assert memory.nbytes == 40 * GIB - 3 * GIB - GIB // 2 - EMBEDDINGS
    size = cache_size(SPEC, 2, DEVICE, 1 << 24, memory)
    assert size.n_blocks == int(36.25 * GIB * 0.9) // BLOCK and size.nbytes == size.n_blocks * BLOCK
    assert size.bound == "--kv-cache-share 0.9 of 36.25 GiB left"


@each_of("share", [0.25, 0.5, 1.0])
def test_the_share_that_is_asked_for_holds_on_a_device_too(share: float) -> None:
    config = msgspec.structs.replace(DEVICE, kv_cache_share=share)
    size = cache_size(SPEC, 2, config, 1 << 24, left(9 * GIB + GIB * 3 // 4))
    assert size.n_blocks == int(8 * GIB * share) // BLOCK and size.bound == f"--kv-cache-share {share:g} of 8 GiB left"


def test_a_size_by_name_holds_on_a_device_too_and_takes_all_that_is_left() -> None:
    config, others = msgspec.structs.replace(DEVICE, kv_cache_bytes=GIB), GIB + GIB * 3 // 4
    size = cache_size(SPEC, 2, config, 1 << 24, left(others + GIB))
    assert (size.nbytes, size.bound) == (GIB, "--kv-cache-mib")
    with pytest.raises(
        CacheTooLarge, match=r"^--kv-cache-mib: 1 GiB of KV cache are more than the 0\.999\d* GiB left: l"
    ):
        cache_size(SPEC, 2, config, 1 << 24, left(others + GIB - MIB))
    two = msgspec.structs.replace(config, max_seqs=2)  # what sequences can use of it fits
    assert cache_size(SPEC, 2, two, 4096, left(others + MIB * 4)).bound.startswith("--max-seqs x --max-model-len")


@each_of("free", [0, GIB, 7 * GIB // 4 + BLOCK])
def test_a_device_that_holds_no_block_is_one_sentence_with_its_remedy(free: int) -> None:
    with pytest.raises(CacheTooSmall) as refused:
        cache_size(SPEC, 2, DEVICE, 4096, left(free))
    assert re.fullmatch(
        r"--kv-cache-share 0\.9 of \S+ GiB left: \d+ bytes hold no block of the KV cache, one takes 32768 \(--block-"
        rf"size 128 tokens\); of {re.escape(f'{free / GIB:.4g}')} GiB free on the device with the weights loaded it "
        r"keeps 1 GiB for activations and encoders, 0\.5 GiB for graphs, 0\.25 GiB for embeddings: end what else runs "
        r"there, or lower --max-pixels, .* or --embedding-mib",
        str(refused.value),
    )


def most(n_blocks: int, length: int) -> CacheSize:
    return CacheSize(n_blocks=n_blocks, block_size=128, nbytes=n_blocks * BLOCK, max_model_len=length)


@each_of(
    ("n_blocks", "length", "tokens", "seqs", "expected", "longest"),
    [
        (100_000, 32_768, 2048, 16, 256 + 16, 32_768),  # the longest sequence, and a block for each other
        (100_000, 512, 8192, 64, 64 + 64, 512),  # a step's tokens
        (300, 32_768, 2048, 16, 150, 150 * 128),  # no more than half: peaks must fit beside it
        (1, 128, 2048, 16, 1, 128),
        (3, 300, 1, 1, 1, 128),
    ],
)  # fmt: skip
def test_what_peaks_are_measured_over(
    n_blocks: int, length: int, tokens: int, seqs: int, expected: int, longest: int
) -> None:
    config = EngineConfig(max_seqs=seqs, max_batched_tokens=tokens)
    trial = trial_size(most(n_blocks, length), config)
    assert (trial.n_blocks, trial.max_model_len, trial.nbytes) == (expected, longest, expected * BLOCK)
    fresh, late = full_steps(trial, config)
    assert sum(fresh[0]) == min(tokens, trial.n_blocks * 128) and late[1][0] == longest
