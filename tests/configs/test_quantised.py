"""What of a checkpoint's files counts as quantised; the whole directories are tried in tests/published."""

import json
from pathlib import Path

import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from configs.quantised import refuse_quantised, refuse_quantised_tensor
from tests.tables import each_of


def checkpoint(path: Path, **config: object) -> Checkpoint:
    (path / "config.json").write_text(json.dumps(config))
    return Checkpoint(path)


def test_method_and_width_are_named(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, thinker_config={"text_config": {"quantization_config": {"quant_method": "awq"}}})
    said = r"^config\.json: thinker_config: text_config: quantization_config: the weights are quantised \(awq\); only "
    with pytest.raises(CheckpointError, match=said):
        refuse_quantised(found)
    with pytest.raises(CheckpointError, match=r"quantised \(x, 3 bits\); only float32, .*: take the original"):
        refuse_quantised(checkpoint(tmp_path, compression_config={"quant_method": "x", "num_bits": 3}))


@each_of("value", [None, {}, "", {"quant_method": "bitsandbytes", "load_in_4bit": False}])
def test_what_quantises_nothing(tmp_path: Path, value: object) -> None:
    refuse_quantised(checkpoint(tmp_path, quantization_config=value, quantize=None))


@each_of("name", ["model.layers.0.mlp.up_proj.weight", "visual.scale", "h.0.ln_1.weight_scales"])
def test_plain_tensors_pass(name: str) -> None:
    refuse_quantised_tensor("model.safetensors", name)
