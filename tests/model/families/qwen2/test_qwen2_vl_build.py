"""Building Qwen2-VL: which configurations load, and which are refused with the key and the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from configs.checkpoint import CheckpointError
from model.forward_batch import KVSpec
from tests.parity.harness import OurRun, load_ours, make_sample
from tests.tables import each_of
from tests.tiny.qwen2_vl import Layout, write_qwen2_vl

pytestmark = pytest.mark.network

Config = dict[str, Any]
Tensors = dict[str, np.ndarray]


def edit_config(path: Path, change: Callable[[Config], object]) -> Path:
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))
    return path


def edit_tensors(path: Path, change: Callable[[Tensors], object]) -> Path:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")
    return path


@each_of("layout", ["hub", "v5"])
def test_sizes(tmp_path: Path, layout: Layout) -> None:
    model = load_ours(write_qwen2_vl(tmp_path, layout=layout))
    assert (model.vocab_size, model.hidden_size, model.dtype) == (model.embed.vocab, 64, torch.float32)
    assert model.kv == KVSpec(layers=2, kv_heads=2, head_dim=16, cached_dim=16, grouped=True)
    assert model.kv.bytes_per_token(4) == 2 * 2 * 2 * 16 * 4
    assert model.encoders["image"].input_shape((1, 4, 6)) == (24, 588)
    assert [key.shape for key, _ in model.kv_cache(3, 16)] == [(3, 16, 2, 16)] * 2


@each_of(
    ("key", "value"),
    [("hidden_act", "gelu"), ("use_sliding_window", True), ("rope_scaling", {"type": "longrope"})],
)
def test_values_that_change_the_mathematics_are_refused(tmp_path: Path, key: str, value: object) -> None:
    path = edit_config(write_qwen2_vl(tmp_path), lambda config: config.update({key: value}))
    with pytest.raises(CheckpointError, match=r"config\.json.*not supported"):
        load_ours(path)


@each_of(
    ("key", "value"),
    [
        ("hidden_act", "silu"),
        ("temporal_patch_size", 1),
        ("in_chans", 1),
        ("hidden_size", 32),
        ("rope_parameters", {"rope_theta": 5e3}),
    ],
)
def test_vision_values_too(tmp_path: Path, key: str, value: object) -> None:
    path = edit_config(write_qwen2_vl(tmp_path), lambda config: config["vision_config"].update({key: value}))
    with pytest.raises(CheckpointError, match=r"vision_config.*not supported"):
        load_ours(path)


def test_sections_must_fill_the_head(tmp_path: Path) -> None:
    path = edit_config(write_qwen2_vl(tmp_path), lambda config: config["rope_scaling"].update(mrope_section=[2, 3, 4]))
    with pytest.raises(CheckpointError, match=r"rope_scaling: mrope_section is \[2, 3, 4\].*add up to 8"):
        load_ours(path)


def test_a_required_key_without_default(tmp_path: Path) -> None:
    path = edit_config(write_qwen2_vl(tmp_path), lambda config: config["rope_scaling"].pop("mrope_section"))
    with pytest.raises(CheckpointError, match=r"rope_scaling: required key 'mrope_section' is missing"):
        load_ours(path)


def test_rope_under_either_key_is_the_same(tmp_path: Path) -> None:
    def modern(config: Config) -> None:
        rope = config.pop("rope_scaling")
        config["rope_parameters"] = {
            "rope_type": "default", "rope_theta": config.pop("rope_theta"), "mrope_section": rope["mrope_section"],
        }  # fmt: skip

    old = write_qwen2_vl(tmp_path / "old")
    new = edit_config(write_qwen2_vl(tmp_path / "new"), modern)
    other = edit_config(write_qwen2_vl(tmp_path / "other"), lambda config: config.update(rope_theta=1e4))
    sample = make_sample(old, [4, (1, 4, 4), 6])
    logits = [OurRun(load_ours(path)).whole(sample) for path in (old, new, other)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = edit_tensors(write_qwen2_vl(tmp_path), lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.bias"))
    with pytest.raises(CheckpointError, match=r"'model\.layers\.1\.self_attn\.k_proj\.bias' is missing"):
        load_ours(path)


def test_an_unused_tensor_is_named(tmp_path: Path) -> None:
    extra = {"model.layers.2.mlp.up_proj.weight": np.zeros((96, 64), np.float32)}
    path = edit_tensors(write_qwen2_vl(tmp_path), lambda tensors: tensors.update(extra))
    with pytest.raises(CheckpointError, match=r"does not use: model\.layers\.2\.mlp\.up_proj\.weight"):
        load_ours(path)


def test_a_misshapen_tensor_is_named(tmp_path: Path) -> None:
    path = edit_config(write_qwen2_vl(tmp_path), lambda config: config.update(intermediate_size=128))
    with pytest.raises(CheckpointError, match=r"mlp\.gate_proj\.weight' has shape \[96, 64\].*\[128, 64\]"):
        load_ours(path)


def test_an_untied_model_needs_its_head(tmp_path: Path) -> None:
    path = edit_config(write_qwen2_vl(tmp_path), lambda config: config.update(tie_word_embeddings=False))
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' is missing"):
        load_ours(path)


def test_tying_may_be_said_inside_text_config(tmp_path: Path) -> None:
    def move(config: Config) -> None:
        config["text_config"]["tie_word_embeddings"] = config.pop("tie_word_embeddings")

    load_ours(edit_config(write_qwen2_vl(tmp_path, layout="v5"), move))


@each_of(
    ("shape", "grid"), [((16, 588), (1, 4, 6)), ((16, 1176), (1, 4, 4)), ((15, 588), (1, 3, 5)), ((32, 588), (2, 4, 4))]
)
def test_pixels_that_do_not_fit_their_grid(tmp_path: Path, shape: tuple[int, int], grid: tuple[int, int, int]) -> None:
    model = load_ours(write_qwen2_vl(tmp_path))
    with pytest.raises(ValueError, match="do not fit an image of"):
        model.encode("image", [torch.zeros(shape, dtype=torch.uint8)], [grid])[0]
