"""Building Qwen2.5-VL: which configurations load, and which are refused with the key and the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.checkpoint import Checkpoint, CheckpointError
from model.registry import family_of
from tests.parity.harness import Film, OurRun, load_ours, make_sample
from tests.tables import each_of
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl

pytestmark = pytest.mark.network

Config = dict[str, Any]


def edit_vision(path: Path, change: Callable[[Config], object]) -> Path:
    config = json.loads((path / "config.json").read_text())
    change(config["vision_config"])
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_sizes(tmp_path: Path) -> None:
    path = write_qwen2_5_vl(tmp_path)
    model, family = load_ours(path), family_of(Checkpoint(path))
    assert family.name == "qwen2_5_vl"
    assert family.processor(Checkpoint(path), 10**6).modalities.keys() == {"image", "video"}
    assert model.encoders["image"].input_shape((1, 4, 6)) == (24, 588)
    assert model.encoders["video"].input_shape((3, 4, 6)) == (72, 1176)
    assert (
        set(model.placeholder_ids) == {"image", "video"}
        and model.placeholder_ids["image"] != model.placeholder_ids["video"]
    )


@each_of(
    ("key", "value", "message"),
    [
        ("hidden_act", "quick_gelu", "hidden_act"),
        ("temporal_patch_size", 1, "temporal_patch_size"),
        ("in_chans", 1, "in_chans"),
        ("out_hidden_size", 32, "out_hidden_size"),
        ("window_size", 20, "window_size 20 is less than a token"),
        ("fullatt_block_indexes", [1, 4], r"fullatt_block_indexes \[1, 4\] are not blocks of 4"),
    ],
)
def test_values_that_are_not_supported(tmp_path: Path, key: str, value: object, message: str) -> None:
    path = edit_vision(write_qwen2_5_vl(tmp_path), lambda vision: vision.update({key: value}))
    with pytest.raises(CheckpointError, match=rf"config\.json: vision_config.*{message}"):
        load_ours(path)


@each_of(("key", "value"), [("fullatt_block_indexes", []), ("fullatt_block_indexes", [0, 1]), ("window_size", 56)])
def test_windows_matter(tmp_path: Path, key: str, value: object) -> None:
    """The other way round: a tower that overlooked the key would give what it gives without the change."""
    path = write_qwen2_5_vl(tmp_path / "a")
    other = edit_vision(write_qwen2_5_vl(tmp_path / "b"), lambda vision: vision.update({key: value}))
    sample = make_sample(path, [(1, 16, 20)])
    found = [load_ours(p).encode("image", [sample.pixels[0]], [sample.grids[0]])[0] for p in (path, other)]
    assert (found[0] - found[1]).abs().max() > 1e-3


def test_time_is_counted_in_seconds(tmp_path: Path) -> None:
    path = write_qwen2_5_vl(tmp_path)
    samples = [make_sample(path, [3, Film(grid=(3, 4, 4), seconds=seconds), 4]) for seconds in (0.5, 2.0)]
    logits = [OurRun(load_ours(path)).whole(sample)[-1] for sample in samples]
    assert torch.equal(samples[0].pixels[0], samples[1].pixels[0]) and (logits[0] - logits[1]).abs().max() > 1e-3


@each_of(
    ("kind", "shape", "grid"),
    [
        ("video", (32, 588), (2, 4, 4)),
        ("video", (16, 1176), (2, 4, 4)),
        ("image", (32, 588), (2, 4, 4)),
        ("video", (0, 1176), (0, 4, 4)),
    ],
)
def test_pixels_that_do_not_fit_their_grid(
    tmp_path: Path, kind: str, shape: tuple[int, int], grid: tuple[int, int, int]
) -> None:
    model = load_ours(write_qwen2_5_vl(tmp_path))
    with pytest.raises(ValueError, match="do not fit a"):
        model.encode(kind, [torch.zeros(shape, dtype=torch.uint8)], [grid])[0]
