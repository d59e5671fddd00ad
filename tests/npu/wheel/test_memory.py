"""The start over the wheel's own allocator: peaks over a small cache, which is freed before the real one is made."""

import gc
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from configs.serve import MIB, EngineConfig
from model.device import DeviceError
from model.engine.kv_cache_size import CacheTooLarge, CacheTooSmall
from model.engine.loop import load
from model.engine.messages import LargestItem, StartEngine
from model.forward_batch import KVCache
from model.net.multimodal import MultimodalLM
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.npu

LENGTH, BLOCK = 4096, 128
CONFIG = EngineConfig(
    device="npu", dtype="bfloat16", max_seqs=64, max_batched_tokens=64, embedding_bytes=3 * MIB, threads=1
)  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def module(npu: torch.device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`torch.npu`, of a card with 128 MiB free."""
    found = torch.get_device_module(npu)
    leave(found, 128, monkeypatch)
    return found


def leave(module: Any, mib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # what an error of an earlier test holds would become free in the middle of this one
    module.synchronize()
    module.empty_cache()
    monkeypatch.delenv("NPU_STUB_MIB", raising=False)
    free, total = module.mem_get_info()
    monkeypatch.setenv("NPU_STUB_MIB", str((total - free) // MIB + 1 + mib))


def start_of(checkpoint: Path, root: Path, patches: int = 32, **fields: Any) -> StartEngine:
    image = LargestItem(kind="image", grid=(1, patches, patches), n_tokens=patches * patches // 4, fixed=False)
    config = msgspec.structs.replace(CONFIG, **fields)
    return StartEngine(
        checkpoint=str(checkpoint), engine=config, shm_root=str(root), max_model_len=LENGTH, largest=(image,)
    )


def test_caches_are_made_one_after_the_other(
    checkpoint: Path, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int, int]] = []  # blocks, bytes of tensors before, bytes that the driver has free before
    whole = MultimodalLM.kv_cache

    def kv_cache(self: MultimodalLM, blocks: int, block_size: int) -> KVCache:
        module.empty_cache()
        made.append((blocks, module.memory_allocated(), module.mem_get_info()[0]))
        return whole(self, blocks, block_size)

    monkeypatch.setattr(MultimodalLM, "kv_cache", kv_cache)
    module.reset_peak_memory_stats()
    engine, ready = load(start_of(checkpoint, tmp_path))
    rows = {line: nbytes for line, nbytes, _ in ready.memory}
    (trial, before_trial, _), (real, before, free) = made
    assert trial == LENGTH // BLOCK + CONFIG.max_seqs < real == engine.size.n_blocks
    assert ready.kv_blocks == real - engine.size.reserved == real - 1, "a block for the padding of graphs"
    assert abs(before - before_trial) <= MIB // 4, "nothing of the trial is left but what a kernel keeps"
    assert rows["activations and encoders"] >= rows["encoder peak, image"] > MIB
    block = rows["KV cache"] // real
    kept = ("activations and encoders", "graphs of decodes", "embeddings, at most")
    left = free - sum(rows[line] for line in kept)
    assert real == int(left * 0.9) // block
    assert module.memory_allocated() - before >= rows["KV cache"]
    assert engine.idle and module.mem_get_info()[0] > rows["embeddings, at most"] + 0.05 * left


@pytest.mark.parametrize(
    ("mib", "fields", "error", "said"),
    [
        (48, {"embedding_bytes": 47 * MIB}, CacheTooSmall, "--kv-cache-share 0.9 of 0 GiB left: 0 bytes hold no block"),
        (64, {"patches": 160}, DeviceError, "npu:0 has no memory for the largest image (NPU out of memory."),
        (24, {"kv_cache_bytes": 48 * MIB}, CacheTooLarge, "--kv-cache-mib: 0.04688 GiB of KV cache are more than the"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(
    checkpoint: Path, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    mib: int, fields: dict[str, Any], error: type[Exception], said: str,
) -> None:  # fmt: skip
    leave(module, mib, monkeypatch)
    with pytest.raises(error) as refused:
        load(start_of(checkpoint, tmp_path, **fields))
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)
