"""What ranks would hold and have room for, beside what a loaded part has, on cards that are not here."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import GIB, MIB, EngineConfig
from model.device import DeviceError
from model.engine.kv_cache_size import cache_size, on_device
from model.engine.messages import StartEngine
from model.engine.profile import Profile
from model.engine.ranks.capacity import DECODERS, Capacity, PlannedDevice, RankCapacity, capacity
from model.engine.ranks.part import load_part
from model.engine.sampling.sampler import sampling_bytes
from model.ops.npu import NpuOps
from model.ops.torch_ops import TorchOps
from model.registry import family_of
from model.weight_shapes import META, AskedWeights
from model.weight_tensors import WHOLE
from tests.model.net.asked import built
from tests.rights import forbidden
from tests.tables import each_of
from tests.tiny.families import NAMES, WRITERS
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl

pytestmark = pytest.mark.network

CARD = PlannedDevice(kind="npu", nbytes=GIB)
LENGTH = 2048


def found(path: Path, device: PlannedDevice = CARD, *ranks: int, length: int = LENGTH, **engine: Any) -> Capacity:
    return capacity(Checkpoint(path, sizes_alone=True), EngineConfig(**engine), device, length, ranks or (1,))


def only(path: Path, device: PlannedDevice = CARD, n: int = 1, **engine: Any) -> RankCapacity:
    (one,) = found(path, device, n, **engine).ranks
    return one


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that change no file."""
    return write_qwen2_5_vl(tmp_path_factory.mktemp("model"))


def alone(path: Path, target: Path) -> Path:
    """config.json, and nothing else."""
    target.mkdir()
    shutil.copy(path / "config.json", target)
    return target


@each_of("name", NAMES)
def test_config_json_alone_tells_as_much_as_headers(tmp_path: Path, name: str) -> None:
    """All that ranks share out is the decoder's; of the rest each has all."""
    whole = WRITERS[name](tmp_path / "whole")
    by_headers, by_config = found(whole, CARD, 1, 2), found(alone(whole, tmp_path / "alone"), CARD, 1, 2)
    assert by_headers.ranks == by_config.ranks and by_headers.serves
    assert by_headers.no_headers == "" and by_config.no_headers.startswith("no weights here: it holds none of model.s")
    one, two = (each.weights for each in by_headers.ranks)
    assert one is not None and two is not None
    assert one.nbytes - one.decoder_bytes == two.nbytes - two.decoder_bytes > 0
    assert two.decoder_bytes < 0.6 * one.decoder_bytes
    cuts = built(whole, 0, 2).asked.cuts
    assert all(name.startswith(DECODERS) for name, cut in cuts.items() if cut != WHOLE)


def test_room_is_what_a_start_finds(path: Path) -> None:
    """Beside weights, embeddings and samplers, by its own functions; heads are as wide as an NPU has them."""
    config = EngineConfig(max_seqs=4, embedding_bytes=100 * MIB, block_size=128, tensor_parallel=2)
    one = only(path, CARD, 2, max_seqs=4, embedding_bytes=100 * MIB)
    checkpoint, asked = Checkpoint(path), AskedWeights(torch.bfloat16)
    model = family_of(checkpoint).build(checkpoint, asked, NpuOps(META, torch.bfloat16))
    assert model.kv.cached_dim > model.kv.head_dim
    assert one.weights is not None and one.weights.kv.cached_dim == model.kv.cached_dim
    sampling = sampling_bytes(4, model.vocab_size)
    assert one.embedding_bytes == 50 * MIB and one.left == GIB - one.weights.nbytes - 50 * MIB - sampling
    shared = msgspec.structs.replace(config, embedding_bytes=50 * MIB)
    memory = on_device(GIB - one.weights.nbytes, shared, Profile(encoders={}, step=sampling))
    assert one.size == cache_size(one.weights.kv, 2, shared, LENGTH, memory, reserved=1)
    assert one.size is not None and one.size.bound.startswith("--max-seqs x --max-model-len")
    assert one.room is not None and one.room.nbytes <= 0.9 * one.left < one.room.nbytes + one.room.nbytes // 100
    assert one.requests == one.room.usable // (LENGTH // 128) > 4


def test_what_is_said_of_working_memory_is_taken_off(path: Path) -> None:
    less, more = (PlannedDevice(kind="npu", nbytes=GIB, working=working) for working in (1, 300 * MIB))
    samplers = found(path, less).device.working
    assert 1 < samplers == found(path).device.working < found(path, more).device.working == 300 * MIB
    assert only(path, less).left - only(path, more).left == 300 * MIB - samplers


def test_of_a_cpu_half_of_what_weights_leave_is_the_cache(path: Path) -> None:
    one = only(path, PlannedDevice(kind="cpu", nbytes=GIB), dtype="float32")
    assert one.weights is not None and one.embedding_bytes == 0 and one.left == GIB - one.weights.nbytes
    assert one.room is not None and 0 <= one.left // 2 - one.room.nbytes < 16 * one.weights.kv.bytes_per_token(4)
    assert one.room.reserved == 0 and one.room.block_size == 16


@each_of("on_disk", ["table", "head too", "untied"])
@each_of("dtype", ["float32", "bfloat16"])
def test_of_a_cpu_weights_and_cache_are_those_of_a_start(tmp_path: Path, dtype: str, on_disk: str) -> None:
    """Where a CPU packs weights a tied table is kept twice, and no less than one with a head of its own."""
    path = write_qwen2_5_vl(tmp_path / "model", tied=on_disk != "untied")
    if on_disk == "head too":
        tensors = load_file(path / "model.safetensors")
        save_file(
            {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path / "model.safetensors"
        )
    engine: dict[str, Any] = {"dtype": dtype, "kv_cache_bytes": MIB, "max_seqs": 2}
    one = only(path, PlannedDevice(kind="cpu", nbytes=GIB), **engine)
    part = load_part(
        StartEngine(
            checkpoint=str(path), engine=EngineConfig(device="cpu", **engine), shm_root="", max_model_len=LENGTH
        ),
        lambda: None, lambda done, total: None, None,
    )  # fmt: skip
    assert one.weights is not None and one.weights.nbytes == part.weight_bytes and one.size == part.size
    (rows, width), itemsize = part.model.embed.table.shape, part.model.dtype.itemsize
    packs = TorchOps(torch.device("cpu"), part.model.dtype).prepacks
    on_a_card = only(path, PlannedDevice(kind="cuda", nbytes=GIB), dtype=dtype).weights
    assert on_a_card is not None
    copies = 1 if packs and on_disk != "untied" else 0
    assert one.weights.nbytes - on_a_card.nbytes == copies * rows * width * itemsize
    assert one.weights.decoder_bytes - on_a_card.decoder_bytes == one.weights.nbytes - on_a_card.nbytes


@each_of(("n", "engine", "nbytes", "words"), [
    (3, {}, GIB, "config.json: 3 ranks do not share 4 heads of queries evenly (ranks that share all: 1, 2, 4)"),
    (1, {}, 1000, "of weights are more than 9.313e-07 GiB"),
    (1, {}, 256 * MIB + (1 << 19), "hold no block of the KV cache"),
    (1, {"max_seqs": 1}, 258 * MIB, "tokens of KV cache are less than --max-model-len: it starts, and one re"),
    (2, {"kv_cache_bytes": 3 * GIB}, GIB, "--kv-cache-mib / 2: 1 GiB of KV cache are more than"),
], copied=('path',))  # fmt: skip
def test_why_a_number_of_ranks_does_not_serve_it(
    path: Path, n: int, engine: dict[str, Any], nbytes: int, words: str
) -> None:
    whole = found(path, PlannedDevice(kind="npu", nbytes=nbytes), n, length=1 << 17, **engine)
    assert words in whole.ranks[0].refusal and not whole.serves


def test_of_a_cpu_a_cache_by_size_is_compared_with_nothing_as_at_a_start(path: Path) -> None:
    engine: dict[str, Any] = {"dtype": "float32", "kv_cache_bytes": 64 * MIB, "max_seqs": 2048}
    weights = only(path, PlannedDevice(kind="cpu", nbytes=GIB), **engine).weights
    assert weights is not None
    one = only(path, PlannedDevice(kind="cpu", nbytes=weights.nbytes + MIB), **engine)
    config = EngineConfig(block_size=16, **engine)
    assert one.size == one.room == cache_size(weights.kv, 4, config, LENGTH) and not one.refusal
    assert one.left == MIB < 63 * MIB < one.size.nbytes and one.requests == one.size.usable // (LENGTH // 16)


@each_of("kind", ["npu", "cuda"], copied=("path",))
def test_a_cache_by_size_lies_beside_all_else_that_is_counted(path: Path, kind: str) -> None:
    device = PlannedDevice(kind=kind, nbytes=GIB)
    left = only(path, device, max_seqs=2048).left
    fits, not_quite = (only(path, device, kv_cache_bytes=nbytes, max_seqs=2048) for nbytes in (left, left + MIB))
    assert not fits.refusal and fits.size == fits.room is not None and 0.99 * left < fits.room.nbytes <= left
    assert "GiB left: lower it, or leave it away" in not_quite.refusal and not_quite.room is None
    served = only(path, device, kv_cache_bytes=8 * GIB, max_seqs=2)  # of which two use little
    assert not served.refusal and served.size is not None and served.size.nbytes < served.left // 4
    assert served.room is not None and 0.99 * served.left < served.room.nbytes <= served.left
    assert served.requests == served.room.usable // (LENGTH // served.room.block_size)


def test_of_gpus_one_serves_it(path: Path) -> None:
    one, two = found(path, PlannedDevice(kind="cuda", nbytes=GIB), 1, 2).ranks
    assert not one.refusal and two.refusal.startswith("--tensor-parallel: of cuda one device is served")


def test_settings_that_a_device_does_not_take_are_refused(path: Path) -> None:
    for engine, flag in (({"dtype": "float32"}, "--dtype"), ({"block_size": 16}, "--block-size")):
        with pytest.raises(DeviceError, match=f"^{flag} .* is not served on an NPU"):
            found(path, **engine)


def test_files_that_are_not_all_there_are_not_opened(tmp_path: Path) -> None:
    path = write_qwen2_5_vl(tmp_path)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    assert found(path).no_headers == "pytorch_model.bin is no file of safetensors"
    index = {"weight_map": {"a": "model-1.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert found(path).no_headers == "model-1.safetensors is missing; model.safetensors.index.json names it"
    assert found(path).serves


def test_a_clone_without_the_objects_of_git_lfs_is_config_json_alone(tmp_path: Path) -> None:
    """Of each large file it has a pointer: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md."""
    path = write_qwen2_5_vl(tmp_path)
    whole, weights = found(path), path / "model.safetensors"
    size, digest = weights.stat().st_size, hashlib.sha256(weights.read_bytes()).hexdigest()
    weights.unlink()
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for shard in shards:
        (path / shard).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n")
    index = {"weight_map": dict(zip("ab", shards, strict=True))}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    pointers = found(path)
    assert pointers.no_headers == f"{shards[0]}: a Git LFS pointer, not the file: run `git lfs pull` in its directory"
    assert pointers.serves and pointers.ranks == whole.ranks and whole.no_headers == ""
    with forbidden(path / shards[0]):
        assert found(path).no_headers == f"{shards[0]}: cannot be read: Permission denied"


def test_headers_that_contradict_config_json_are_refused(tmp_path: Path) -> None:
    path = write_qwen2_5_vl(tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 9}))
    with pytest.raises(CheckpointError, match="asks for 9 layers"):
        found(path)


@each_of(
    ("family", "keys", "value"),
    [
        ("qwen2_5_vl", ("vision_config", "tokens_per_second"), -3),
        ("qwen2_5_omni", ("thinker_config", "position_id_per_seconds"), "bad"),
        ("qwen2_5_omni", ("thinker_config", "seconds_per_chunk"), 0),
    ],
)
def test_what_config_json_says_to_a_processor_is_refused_without_one(
    family: str, keys: tuple[str, str], value: Any, tmp_path: Path
) -> None:
    whole = WRITERS[family](tmp_path / "whole")
    config = json.loads((whole / "config.json").read_text())
    config[keys[0]][keys[1]] = value
    (whole / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"'{keys[1]}' is") as started:
        family_of(Checkpoint(whole)).host(Checkpoint(whole), 1 << 24)
    with pytest.raises(CheckpointError) as planned:
        found(alone(whole, tmp_path / "alone"))
    assert str(planned.value) == str(started.value)
