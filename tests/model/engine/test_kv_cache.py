"""The size of the cache: stated bytes, useful tokens, and what that leaves for one sequence."""

import dataclasses

import msgspec
import pytest
import torch

from configs.serve import EngineConfig
from model.engine.kv_cache import CacheTooSmall, cache_size
from model.forward_batch import KVSpec
from model.net.multimodal import MultimodalLM
from model.ops.npu import NpuOps

SPEC = KVSpec(layers=2, kv_heads=2, head_dim=16, cached_dim=16)  # 128 elements a token
NBYTES = 128 * 4 * 16 * 10
CONFIG = EngineConfig(max_seqs=2, block_size=16, kv_cache_bytes=NBYTES)


def test_stated_bytes() -> None:
    size = cache_size(SPEC, 4, CONFIG, 1000)
    assert (size.n_blocks, size.block_size, size.nbytes) == (10, 16, NBYTES)
    assert size.max_model_len == 160  # what the cache holds
    assert cache_size(SPEC, 2, CONFIG, 1000).n_blocks == 20


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
