"""Parts of tensors: the same numbers as in the whole, and no other bytes read."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from configs.checkpoint import Checkpoint, CheckpointError
from model.weight_tensors import WHOLE, Cut
from model.weights import Weights
from tests.rights import forbidden
from tests.tables import each_of

pytestmark = pytest.mark.network

CUTS: dict[str, tuple[Cut, Callable[[Tensor], Tensor]]] = {
    "whole": (WHOLE, lambda x: x),
    "rows": (Cut(rows=(range(2, 5),)), lambda x: x[2:5]),
    "runs": (Cut(rows=(range(5, 7), range(0, 1))), lambda x: torch.cat([x[5:7], x[:1]])),
    "none": (Cut(rows=()), lambda x: x[:0]),
    "columns": (Cut(columns=range(3, 9)), lambda x: x[:, 3:9]),
    "both": (Cut(rows=(range(1, 3), range(6, 7)), columns=range(0, 2)), lambda x: torch.cat([x[1:3], x[6:7]])[:, :2]),
}


def checkpoint_of(path: Path, kind: str, tensors: dict[str, Tensor]) -> Checkpoint:
    (path / "config.json").write_text("{}")
    if kind == "safetensors":
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    else:
        torch.save(tensors, path / "pytorch_model.bin")
    return Checkpoint(path)


@each_of("kind", ["safetensors", "pickled"])
@each_of("dtype", [torch.float32, torch.bfloat16])
@each_of("cut", CUTS)
def test_a_part_is_what_the_whole_has_there(tmp_path: Path, kind: str, dtype: torch.dtype, cut: str) -> None:
    """Of a pickled file the matrix lies transposed there."""
    matrix = torch.arange(77.0, dtype=dtype).view(11, 7).T
    checkpoint = checkpoint_of(tmp_path, kind, {"a": matrix, "b": torch.ones(2, dtype=dtype)})
    done: list[tuple[int, int]] = []
    weights = Weights(checkpoint, {}, torch.float32, on_read=lambda *told: done.append(told))
    wanted, slices = CUTS[cut]
    taken, expected = weights.take("a", (7, 11), cut=wanted), slices(matrix).float()
    assert torch.equal(taken, expected) and taken.is_contiguous()
    assert weights.read_bytes == expected.numel() * dtype.itemsize
    assert weights.taken_bytes == expected.numel() * 4
    weights.take("b")
    weights.finish()  # what was left out of a tensor is taken, too
    assert done[-1][0] == done[-1][1]
    meta = Weights(checkpoint, {}, torch.float32, torch.device("meta"))
    assert meta.take("a", (7, 11), cut=wanted).shape == expected.shape


def test_the_whole_shape_is_checked(tmp_path: Path) -> None:
    weights = Weights(checkpoint_of(tmp_path, "safetensors", {"a": torch.ones(4, 3)}), {}, torch.float32)
    with pytest.raises(CheckpointError, match=r"'a' has shape \[4, 3\], the configuration asks for \[2, 3\]"):
        weights.take("a", (2, 3), cut=Cut(rows=(range(0, 2),)))


def test_a_file_that_ends_inside_a_part(tmp_path: Path) -> None:
    weights = Weights(checkpoint_of(tmp_path, "safetensors", {"a": torch.ones(4, 3)}), {}, torch.float32)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match="'a': the file ends inside it"):
        weights.take("a", (4, 3), cut=Cut(columns=range(1, 3)))


def test_rows_alone_are_compared(tmp_path: Path) -> None:
    one, other = torch.zeros(6, 2), torch.zeros(6, 2)
    other[4] = 1
    weights = Weights(checkpoint_of(tmp_path, "safetensors", {"a": one, "b": other}), {}, torch.float32)
    assert not weights.equal("a", "b")
    assert weights.equal("a", "b", range(0, 4)) and not weights.equal("a", "b", range(3, 6))


@each_of(("kind", "file"), [("safetensors", "model.safetensors"), ("pickled", "pytorch_model.bin")])
def test_a_file_that_nobody_may_read_is_named(tmp_path: Path, kind: str, file: str) -> None:
    checkpoint = checkpoint_of(tmp_path, kind, {"a": torch.ones(4, 3)})
    with forbidden(tmp_path / file), pytest.raises(CheckpointError, match=f"^{file}: cannot be read: Permission den"):
        Weights(checkpoint, {}, torch.float32)
    with forbidden(tmp_path), pytest.raises(CheckpointError, match=f"^{tmp_path}: cannot be read: Permission denied$"):
        Weights(checkpoint, {}, torch.float32)
    assert Weights(checkpoint, {}, torch.float32).has("a")
