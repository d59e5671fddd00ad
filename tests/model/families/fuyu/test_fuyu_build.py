"""Building Fuyu: which configurations load, and which are refused with the key and the file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs.checkpoint import Checkpoint, CheckpointError
from model.registry import family_of
from tests.parity.harness import OurRun, load_ours, make_sample
from tests.parity.in_rows import Rows
from tests.published.edits import edit_json, edit_tensors
from tests.tables import each_of
from tests.tiny.fuyu import write_fuyu

pytestmark = pytest.mark.network


def test_sizes(tmp_path: Path) -> None:
    path = write_fuyu(tmp_path)
    model, family = load_ours(path), family_of(Checkpoint(path))
    assert family.name == "fuyu" and family.processor(Checkpoint(path), 10**6).modalities == family.modalities
    assert model.encoders["image"].input_shape((1, 3, 5)) == (15, 2700) and model.encoders["image"].dtype == torch.uint8
    assert set(model.placeholder_ids) == {"image"} == set(model.encoders) and model.banned_ids == [
        model.placeholder_ids["image"]
    ]
    assert (model.kv.layers, model.kv.kv_heads, model.kv.head_dim) == (2, 4, 16)


@each_of("grid", [(1, 3, 6), (2, 3, 5), (1, 15, 2)])
def test_pixels_that_do_not_fit(tmp_path: Path, grid: tuple[int, int, int]) -> None:
    model = load_ours(write_fuyu(tmp_path))
    with pytest.raises(ValueError, match="do not fit"):
        model.encode("image", [torch.zeros((15, 2700), dtype=torch.uint8)], [grid])[0]


@each_of(
    ("changed", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "type = 'yarn'"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor 0.2"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor 2.0"),
        ({"num_attention_heads": 5}, "num_attention_heads 5"),
        ({"num_channels": 1}, "num_channels = 1"),
        ({"image_token_id": None}, "image_token_id 71011 has no embedding"),
        ({"patch_size": 14}, "asks for"),
        ({"num_hidden_layers": 3}, "config.json asks for 3 layers model.layers.N, and the weights hold 2"),
        ({"num_hidden_layers": 1}, "does not use: .*layers.1"),
    ],
    ids=str,
)
def test_configurations_that_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = edit_json(write_fuyu(tmp_path), lambda values: values.update(changed))
    with pytest.raises(CheckpointError, match=message):
        load_ours(path)


@each_of(
    ("changed", "message"),
    [
        ({"do_normalize": False}, "do_normalize = False"),
        ({"image_mean": [0.5, 0.5]}, "'image_mean' is"),
        ({"image_std": "0.5"}, "'image_std' is"),
    ],
    ids=str,
)
def test_pictures_that_are_prepared_otherwise(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = edit_json(write_fuyu(tmp_path), lambda values: values.update(changed), "preprocessor_config.json")
    with pytest.raises(CheckpointError, match=message):
        load_ours(path)


@each_of("name", ["self_attn.query_key_value.bias", "self_attn.k_layernorm.weight", "mlp.dense_4h_to_h.bias"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    whole = f"language_model.model.layers.1.{name}"
    path = edit_tensors(write_fuyu(tmp_path), lambda tensors: tensors.pop(whole))
    with pytest.raises(CheckpointError, match=rf"layers\.1\.{name}' is missing".replace("_", ".")):
        load_ours(path)


def test_buffers_that_old_releases_saved_are_passed_over(tmp_path: Path) -> None:
    extra = {"language_model.model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    load_ours(edit_tensors(write_fuyu(tmp_path), lambda tensors: tensors.update(extra)))


def test_a_mean_for_each_channel(tmp_path: Path) -> None:
    path = write_fuyu(tmp_path)
    sample = make_sample(path, [Rows(rows=2, columns=3), 3])
    one = OurRun(load_ours(path)).whole(sample)
    values = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    edit_json(path, lambda found: found.update(values), "preprocessor_config.json")
    assert torch.equal(OurRun(load_ours(path)).whole(sample), one)
    edit_json(path, lambda found: found.update(image_mean=[0.5, 0.4, 0.5]), "preprocessor_config.json")
    assert not torch.equal(OurRun(load_ours(path)).whole(sample), one)
