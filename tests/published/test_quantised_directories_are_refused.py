"""A quantised directory of any family ends the start with one line, before any of its weights is opened."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs.checkpoint import CheckpointError
from server import commands as program
from tests.parity.harness import OurRun, hf_logits, load_hf, load_ours, make_sample
from tests.parity.theirs import transformers
from tests.published.edits import edit_json, edit_tensors
from tests.tiny.families import WRITERS

pytestmark = pytest.mark.network

Copy = Callable[[str], Path]
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}},
}  # fmt: skip
# What others write into config.json, the key it stands under, and what our line says of it.
METHODS: dict[str, tuple[str, Callable[[], Any], str]] = {
    "awq": ("quantization_config", lambda: transformers.AwqConfig(bits=4).to_dict(), "(awq, 4 bits)"),
    "gptq": ("quantization_config", lambda: transformers.GPTQConfig(bits=8).to_dict(), "(gptq, 8 bits)"),
    "nf4": ("quantization_config", lambda: transformers.BitsAndBytesConfig(load_in_4bit=True).to_dict(),
            "(bitsandbytes, 4 bits)"),
    "int8": ("quantization_config", lambda: {"load_in_8bit": True}, "(8 bits)"),
    "fp8": ("quantization_config", lambda: transformers.FineGrainedFP8Config().to_dict(), "(fp8)"),
    "compressed": ("quantization_config", lambda: COMPRESSED, "(compressed-tensors)"),
    "old_compressed": ("compression_config", lambda: COMPRESSED, "(compressed-tensors)"),
    "unnamed": ("quantization_config", lambda: {"modules": ["all"]}, "quantised;"),
    "modelslim": ("quantize", lambda: "w8a8", "(w8a8)"),
}  # fmt: skip
FILES = {  # files beside config.json: what they hold, and what our line says
    "quantize_config.json": ({"bits": 4, "group_size": 128, "desc_act": False}, "(4 bits)"),
    "quant_config.json": ({"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}, "(4 bits)"),
    "quant_model_description.json": ({"model_quant_type": "W8A8"}, "(ModelSlim)"),
    "quant_model_description_w8a16.json": ({}, "(ModelSlim)"),
    "quant_model_weight_w8a8.safetensors": (None, "(ModelSlim)"),
    "quant_model_weights.safetensors.index.json": (None, "(ModelSlim)"),
}
TENSORS = [
    "qweight", "weight.quant_state.bitsandbytes__nf4", "SCB", "weight_packed", "weight_scale_inv", "weight_scale",
    "deq_scale",
]  # fmt: skip


def each_once(cases: Iterable[str]) -> list[tuple[str, str]]:
    """Each family and each case, in as few pairs: the refusal stands in front of all families."""
    families, found = list(WRITERS), list(cases)
    return [(families[n % len(families)], found[n % len(found)]) for n in range(max(len(families), len(found)))]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: write(tmp_path_factory.mktemp(family)) for family, write in WRITERS.items()}


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(*_: object) -> None:
        raise AssertionError("the server started")

    monkeypatch.setattr(program, "serve", serve)


@pytest.fixture
def copy_of(originals: dict[str, Path], tmp_path: Path) -> Copy:
    """A directory of the family that a test may change."""
    return lambda family: Path(shutil.copytree(originals[family], tmp_path / "copy"))


def quantised(path: Path, method: str, section: str = "") -> Path:
    key, value, _ = METHODS[method]

    def change(config: dict[str, Any]) -> None:
        for name in section.split("."):
            config = config.setdefault(name, {}) if name else config
        config[key] = json.loads(json.dumps(value(), default=str))

    return edit_json(path, change)


def refused(path: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """The one line with which the server and, alone, the network refuse this directory; its weights are rubbish."""
    for file in path.glob("*.safetensors"):
        file.write_bytes(b"rubbish")
    assert program.main(["serve", "--model", str(path)]) == 1
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    with pytest.raises(CheckpointError) as failure:
        load_ours(path)
    assert shown.err == f"error: {failure.value}\n"
    assert "quantised" in shown.err and "take the original checkpoint" in shown.err
    return shown.err


@pytest.mark.parametrize(("family", "method"), each_once(METHODS))
def test_by_config_json(copy_of: Copy, family: str, method: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = quantised(copy_of(family), method)
    line = refused(path, capfd)
    assert f"config.json: {METHODS[method][0]}: the weights are quantised" in line and METHODS[method][2] in line


@pytest.mark.parametrize("section", ["text_config", "thinker_config", "thinker_config.text_config", "vision_config"])
def test_inside_a_section(copy_of: Copy, section: str, capfd: pytest.CaptureFixture[str]) -> None:
    family = "qwen2_5_omni" if "thinker" in section else "qwen2_vl"
    line = refused(quantised(copy_of(family), "awq", section), capfd)
    assert f"config.json: {section.replace('.', ': ')}: quantization_config: the weights are quantised (awq" in line


@pytest.mark.parametrize(("family", "name"), each_once(FILES))
def test_by_a_file_beside(copy_of: Copy, family: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = copy_of(family)
    values, said = FILES[name]
    (path / name).write_text("" if values is None else json.dumps(values))
    line = refused(path, capfd)
    assert line.startswith(f"error: {name}: the weights are quantised {said};") and "remove this file" in line


@pytest.mark.parametrize(("family", "suffix"), each_once(TENSORS))
def test_by_a_tensor_alone(copy_of: Copy, family: str, suffix: str) -> None:
    """Where the JSON files keep silent the engine says it, before it reads a tensor."""
    path = copy_of(family)
    edit_tensors(path, lambda tensors: tensors.update({f"model.layers.0.o_proj.{suffix}": np.zeros(3, np.int32)}))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor '.*o_proj\..*': the weights are quantised;"):
        load_ours(path)


NOT_QUANTISED: dict[str, Callable[[dict[str, Any]], object]] = {
    "null": lambda config: config.update(quantization_config=None, compression_config=None, quantize=None),
    "empty": lambda config: config.update(quantization_config={}),
    "off": lambda config: config.update(
        quantization_config=json.loads(json.dumps(transformers.BitsAndBytesConfig().to_dict(), default=str))
    ),
}


@pytest.mark.parametrize("case", NOT_QUANTISED)
def test_what_quantises_nothing_is_served_as_by_transformers(tmp_path: Path, case: str) -> None:
    path = edit_json(WRITERS["qwen2_vl"](tmp_path, layout="v5"), NOT_QUANTISED[case])
    (path / "quantize_config.json").write_text("{}")
    sample = make_sample(path, [9])
    expected = hf_logits(load_hf(path), sample, path)
    torch.testing.assert_close(OurRun(load_ours(path)).whole(sample), expected, rtol=0, atol=1e-4)
