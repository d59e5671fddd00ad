"""What --device and --dtype come to, and the words for what cannot be had."""

from pathlib import Path
from typing import Any

import pytest
import torch

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from configs.serve import Dtype, EngineConfig
from model.device import DeviceError, resolve, with_step_of
from model.engine.scheduling.step_budget import step_tokens
from tests.tables import each_of
from tests.tiny.qwen2_vl import write_json

pytestmark = pytest.mark.network

CPU = torch.device("cpu")


def config_of(path: Path, **config: object) -> ConfigSection:
    write_json(path / "config.json", config)
    return Checkpoint(path).config


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@each_of(
    ("config", "expected"),
    [
        ({}, torch.float32),
        ({"torch_dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": "float32"}, torch.float32),
        ({"text_config": {"dtype": "bfloat16"}}, torch.bfloat16),
        ({"torch_dtype": "float16"}, torch.bfloat16),  # the CPU has no fast float16
    ],
)
def test_auto_dtype_is_the_checkpoints_own(tmp_path: Path, config: dict[str, Any], expected: torch.dtype) -> None:
    assert resolve("auto", "auto", config_of(tmp_path, **config)) == (CPU, expected)


@each_of(
    ("config", "expected"),
    [
        ({"part": {"dtype": "bfloat16"}}, torch.bfloat16),
        ({"part": {"text_config": {"dtype": "bfloat16"}}}, torch.bfloat16),
        ({"torch_dtype": "bfloat16", "part": {}}, torch.bfloat16),
        ({"torch_dtype": "float32", "part": {"torch_dtype": "bfloat16"}}, torch.bfloat16),
    ],
)
def test_the_served_part_of_a_config_says_its_dtype_first(
    tmp_path: Path, config: dict[str, Any], expected: torch.dtype
) -> None:
    whole = config_of(tmp_path, **config)
    assert resolve("auto", "auto", whole.child("part"), whole) == (CPU, expected)


@each_of(("asked", "expected"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_users_dtype_wins(tmp_path: Path, asked: Dtype, expected: torch.dtype) -> None:
    assert resolve("cpu", asked, config_of(tmp_path, torch_dtype="float16"))[1] == expected


def test_float16_stays_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve("auto", "auto", config_of(tmp_path, dtype="float16")) == (torch.device("cuda"), torch.float16)
    assert resolve("cpu", "auto", config_of(tmp_path)) == (CPU, torch.float32)


def test_an_unknown_dtype_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="torch_dtype = 'int8' is not supported"):
        resolve("cpu", "auto", config_of(tmp_path, torch_dtype="int8"))


def test_what_cannot_be_had(tmp_path: Path) -> None:
    plain = config_of(tmp_path)
    with pytest.raises(DeviceError, match="float16 is not served on the CPU"):
        resolve("cpu", "float16", plain)
    with pytest.raises(DeviceError, match="sees no CUDA device"):
        resolve("cuda", "auto", plain)


def test_a_step_of_an_accelerator_has_more_tokens_than_one_of_a_cpu() -> None:
    cuda, cpu = (step_tokens(with_step_of(kind, EngineConfig())) for kind in ("cuda", "cpu"))
    assert (cuda, cpu) == (2048, 256)
