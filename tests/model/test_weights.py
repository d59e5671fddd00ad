"""Weights: both name generations, shards, and every refusal by name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from configs.checkpoint import Checkpoint, CheckpointError
from model.weights import Weights
from tests.tables import each_of

pytestmark = pytest.mark.network

RENAMES = {"model.visual.": "visual.", "model.language_model.": "model."}


def directory(path: Path, tensors: dict[str, np.ndarray] | None = None) -> Checkpoint:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    if tensors is not None:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return Checkpoint(path)


def ramp(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@each_of("prefixes", [("visual.", "model."), ("model.visual.", "model.language_model.")])
def test_both_generations_of_names_read_alike(tmp_path: Path, prefixes: tuple[str, str]) -> None:
    checkpoint = directory(
        tmp_path, {f"{prefixes[0]}a": ramp(2, 3), f"{prefixes[1]}norm.weight": ramp(4), "lm_head.weight": ramp(1)}
    )
    weights = Weights(checkpoint, RENAMES, torch.float32)
    assert weights.take("visual.a", (2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert weights.take("model.norm.weight").tolist() == [0, 1, 2, 3]
    assert weights.take("lm_head.weight").tolist() == [0]
    weights.finish()


def test_a_name_in_both_generations_is_ambiguous(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path, {"visual.a": ramp(1), "model.visual.a": ramp(1)})
    with pytest.raises(CheckpointError, match=r"'(model\.)?visual\.a' and .* both mean 'visual\.a'"):
        Weights(checkpoint, RENAMES, torch.float32)


@each_of("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@each_of("wanted", [torch.float32, torch.bfloat16])
def test_cast(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    checkpoint = directory(tmp_path)
    values = torch.tensor([[0.5, -1.25], [3.1416, 65000.0]], dtype=stored)
    save_torch({"a": values, "b": values.clone()}, tmp_path / "model.safetensors")
    weights = Weights(checkpoint, {}, wanted)
    assert torch.equal(weights.take("a"), values.to(wanted))
    assert weights.take("b", dtype=torch.float64).dtype == torch.float64


def test_scalar_and_empty(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path)
    save_torch({"scalar": torch.tensor(7.0), "empty": torch.empty(0, 3)}, tmp_path / "model.safetensors")
    weights = Weights(checkpoint, {}, torch.float32)
    assert weights.take("scalar", ()).item() == 7
    assert weights.take("empty", (0, 3)).shape == (0, 3)


def test_shards(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path)
    save_file({"a": ramp(2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": ramp(3)}, tmp_path / "model-00002-of-00002.safetensors")
    index = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    weights = Weights(checkpoint, {}, torch.float32)
    assert weights.take("b").tolist() == [0, 1, 2]
    assert weights.take("a").tolist() == [0, 1]
    weights.finish()

    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00002.safetensors is missing"):
        Weights(checkpoint, {}, torch.float32)
    index["a"] = "../model.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(CheckpointError, match=r"'\.\./model\.safetensors' is not a file name"):
        Weights(checkpoint, {}, torch.float32)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="it holds none of model.safetensors, "):
        Weights(directory(tmp_path), {}, torch.float32)


def test_matrices_are_compared_in_pieces_and_in_the_dtype_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.weights._COMPARED_BYTES", 40)  # two rows of five
    values = torch.linspace(-1, 1, 35).view(7, 5)
    nearly = values.clone()
    nearly[6, 4] += 1e-4
    tensors = {
        "a": values,
        "same": values.clone(),
        "nearly": nearly,
        "short": values.bfloat16(),
        "long": values[:6].clone(),
    }
    tensors["ids"] = torch.zeros(7, 5, dtype=torch.int64)
    save_torch(tensors, tmp_path / "model.safetensors")
    checkpoint = directory(tmp_path)
    others = ("same", "nearly", "short", "long", "ids")
    for device in (None, torch.device("meta")):
        weights = Weights(checkpoint, {}, torch.float32, device)
        assert [weights.equal("a", name) for name in others] == [True, False, False, False, False]
        weights = Weights(checkpoint, {}, torch.bfloat16, device)
        assert [weights.equal("a", name) for name in others] == [True, True, True, False, False]
    pickled = torch_shards(tmp_path / "bin", {"pytorch_model.bin": {"a": values.T, "b": nearly.T}})
    assert not Weights(pickled, {}, torch.float32).equal("a", "b")
    assert Weights(pickled, {}, torch.bfloat16).equal("a", "b")


def test_the_file_that_config_json_names_is_read(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path, {"a": ramp(1)})
    save_file({"a": ramp(3)}, tmp_path / "other.safetensors")
    (tmp_path / "config.json").write_text('{"transformers_weights": "other.safetensors"}')
    assert Weights(Checkpoint(checkpoint.path), {}, torch.float32).take("a").shape == (3,)
    for name in ("third.safetensors", "../other.safetensors"):
        (tmp_path / "config.json").write_text(json.dumps({"transformers_weights": name}))
        with pytest.raises(CheckpointError, match=rf"transformers_weights is '{name}', which is no file of"):
            Weights(Checkpoint(checkpoint.path), {}, torch.float32)


def test_missing_misshapen_and_unused_are_named(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path, {"model.language_model.a": ramp(2, 3), "extra.one": ramp(1), "extra.two": ramp(1)})
    weights = Weights(checkpoint, RENAMES, torch.float32)
    with pytest.raises(CheckpointError, match=r"tensor 'model\.b' is missing"):
        weights.take("model.b")
    with pytest.raises(
        CheckpointError, match=r"tensor 'model\.language_model\.a' has shape \[2, 3\].*asks for \[3, 2\]"
    ):
        weights.take("model.a", (3, 2))
    assert weights.has("extra.one") and not weights.has("model.a")
    with pytest.raises(CheckpointError, match=r"does not use: extra\.one \(model\.safetensors\), extra\.two"):
        weights.finish()
    weights.drop("extra.one")
    weights.drop("extra.two")
    weights.drop("never.there")
    weights.finish()


def test_a_tensor_is_given_once(tmp_path: Path) -> None:
    weights = Weights(directory(tmp_path, {"a": ramp(2)}), {}, torch.float32)
    weights.take("a")
    with pytest.raises(CheckpointError, match="'a' is missing"):
        weights.take("a")


def test_integers_are_refused_when_taken_only(tmp_path: Path) -> None:
    weights = Weights(directory(tmp_path, {"ids": np.arange(3)}), {}, torch.float32)
    with pytest.raises(CheckpointError, match="'ids' is stored as I64"):
        weights.take("ids")


def test_a_long_list_of_unused_tensors_is_cut(tmp_path: Path) -> None:
    weights = Weights(directory(tmp_path, {f"t{i}": ramp(1) for i in range(9)}), {}, torch.float32)
    with pytest.raises(CheckpointError, match=r"t5 \(model\.safetensors\) and 3 more$"):
        weights.finish()


def test_what_is_taken_outlives_the_file(tmp_path: Path) -> None:
    """Nothing is mapped: a file replaced or cut under a running server changes nothing and kills nobody."""
    weights = Weights(directory(tmp_path, {"a": ramp(70_000)}), {}, torch.float32)
    taken = weights.take("a")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert taken[-1] == 69_999


def broken(tmp_path: Path, content: bytes, match: str) -> None:
    checkpoint = directory(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=match):
        Weights(checkpoint, {}, torch.float32).take("a")


def with_header(header: object, data: bytes = b"") -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def test_broken_files(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    broken(tmp_path, b"", "not a safetensors file: it has 0 bytes")
    broken(tmp_path, b"\xff" * 40, "cut short inside its header")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4155736\n"
    broken(tmp_path, pointer, "a Git LFS pointer, not the file: run `git lfs pull`")
    broken(tmp_path, (5).to_bytes(8, "little") + b"{nope", "broken safetensors header")
    broken(tmp_path, with_header([1]), "broken safetensors header")
    broken(tmp_path, with_header({"a": {"dtype": "F32"}}), "broken safetensors header: KeyError")
    broken(tmp_path, with_header({"a": entry}, bytes(7)), "cut short: tensor 'a'")
    broken(tmp_path, with_header({"a": {**entry, "data_offsets": [0, 4]}}, bytes(8)), "'a' has 4 bytes for F32")
    broken(tmp_path, with_header({"a": {**entry, "data_offsets": [8, 0]}}, bytes(8)), r"offsets 8\.\.0")
    broken(tmp_path, with_header({"a": {**entry, "shape": [-1, -2]}}, bytes(8)), r"shape \[-1, -2\]")


def test_a_file_cut_after_the_header_was_read(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path, {"a": ramp(100)})
    weights = Weights(checkpoint, {}, torch.float32)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="'a': the file ends inside it"):
        weights.take("a")


def test_reads_what_the_library_reads(tmp_path: Path) -> None:
    from tests.tiny.qwen2_vl import write_qwen2_vl

    path = write_qwen2_vl(tmp_path / "tiny")
    weights = Weights(Checkpoint(path), {}, torch.float32)
    for name, value in load_file(path / "model.safetensors").items():
        assert np.array_equal(weights.take(name, value.shape).numpy(), value)
    weights.finish()
    shutil.rmtree(path)


# ---- torch's own files


def torch_shards(path: Path, shards: dict[str, dict[str, torch.Tensor]]) -> Checkpoint:
    checkpoint = directory(path)
    for name, tensors in shards.items():
        torch.save(tensors, path / name)
    if list(shards) != ["pytorch_model.bin"]:
        weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
        (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return checkpoint


@each_of("names", [["pytorch_model.bin"], [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]])
@each_of("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_pickled_tensors(tmp_path: Path, names: list[str], stored: torch.dtype) -> None:
    tensors = {"model.a": torch.arange(6.0, dtype=stored).view(2, 3), "b": torch.arange(8.0, dtype=stored).view(2, 4).T}
    parts = [tensors] if len(names) == 1 else [{key: value} for key, value in tensors.items()]
    weights = Weights(torch_shards(tmp_path, dict(zip(names, parts, strict=True))), RENAMES, torch.float32)
    taken = weights.take("b", (4, 2))
    assert taken.tolist() == tensors["b"].float().tolist() and taken.is_contiguous()
    with pytest.raises(CheckpointError, match=r"'model\.a' has shape \[2, 3\]"):
        Weights(Checkpoint(tmp_path), RENAMES, torch.float32).take("model.a", (3, 2))
    with pytest.raises(CheckpointError, match=r"does not use: model\.a \(pytorch_model"):
        weights.finish()
    assert torch.equal(weights.take("model.a"), tensors["model.a"].float())
    weights.finish()
    for name in names:  # what was taken is a private copy
        (tmp_path / name).write_bytes(b"")
    assert taken[3, 1] == 7


def test_safetensors_are_preferred(tmp_path: Path) -> None:
    torch_shards(tmp_path, {"pytorch_model.bin": {"a": torch.zeros(2)}})
    weights = Weights(directory(tmp_path, {"a": ramp(2)}), {}, torch.float32)
    assert weights.take("a").tolist() == [0, 1]


class Spy:
    """What a hostile file would run when it is loaded without care."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('this code was run')",)


def test_only_plain_tensors_are_loaded(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    for content in ({"a": Spy()}, [torch.zeros(1)], {"a": 1}):
        torch.save(content, path)
        with pytest.raises(CheckpointError, match="pytorch_model.bin: (damaged, or not|not a table)"):
            Weights(checkpoint, {}, torch.float32)
    torch.save({"a": torch.zeros(1)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="not a zip file of plain tensors"):
        Weights(checkpoint, {}, torch.float32)
    torch.save({"a": torch.zeros(100)}, path)
    for damaged in (b"", path.read_bytes()[:-30]):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="pytorch_model.bin: damaged"):
            Weights(checkpoint, {}, torch.float32)


def test_pickled_integers_are_refused_when_taken_only(tmp_path: Path) -> None:
    weights = Weights(torch_shards(tmp_path, {"pytorch_model.bin": {"ids": torch.arange(3)}}), {}, torch.float32)
    with pytest.raises(CheckpointError, match=r"'ids' is stored as torch\.int64"):
        weights.take("ids")


def test_skipped_prefixes_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    checkpoint = directory(tmp_path, {"speaks.a": ramp(2), "thinks.a": ramp(3), "thinks.speaks.a": ramp(4)})
    weights = Weights(checkpoint, {"thinks.": "", "speaks.": ""}, torch.float32, skips=("speaks.",))
    assert weights.take("a").tolist() == [0, 1, 2]
    assert weights.take("speaks.a").tolist() == [0, 1, 2, 3]
    weights.finish()
