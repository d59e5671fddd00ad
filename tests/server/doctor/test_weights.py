"""The checkpoint that serve would read, as the doctor sees it: what serve refuses, it refuses."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import ModelConfig
from configs.settings import EMBEDDED_MODEL, load_config
from model.registry import family_of
from model.weights import Weights
from server.doctor import weights
from tests.tables import each_of


def finding(path: Path) -> tuple[str, str]:
    found = weights.finding(ModelConfig(path=path, served_name=""))
    assert (found.verdict == "fail") == bool(found.remedy)
    return found.verdict, found.found


def test_a_whole_checkpoint() -> None:
    verdict, found = finding(EMBEDDED_MODEL)
    assert verdict == "ok" and found.endswith("whole by their headers")


def spoil(path: Path, how: str) -> None:
    file = path / "model.safetensors"
    match how:
        case "no config.json":
            (path / "config.json").unlink()
        case "no weights":
            file.unlink()
        case "cut short":
            with file.open("r+b") as opened:
                opened.truncate(file.stat().st_size - 1)
        case "a Git LFS pointer":
            file.write_text("version https://git-lfs.github.com/spec/v1\nsize 4155736\n")
        case "is missing":
            one, other = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
            file.rename(path / one)
            (path / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{one}", "b": "{other}"}}}}')
        case _:
            config = json.loads((path / "config.json").read_text())
            (path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))


@each_of("how", ["no config.json", "no weights", "cut short", "a Git LFS pointer", "is missing", "quantised"])
def test_what_serve_refuses_does_not_serve(tmp_path: Path, how: str) -> None:
    """In serve's own words."""
    path = tmp_path / "model"
    shutil.copytree(EMBEDDED_MODEL, path)
    for file in path.glob("model*.safetensors*"):
        file.unlink()
    shutil.copy(next(EMBEDDED_MODEL.glob("model*.safetensors")), path / "model.safetensors")
    spoil(path, how)
    verdict, found = finding(path)
    assert verdict == "fail" and how in found
    with pytest.raises(CheckpointError) as refused:
        checkpoint = Checkpoint(path)
        family_of(checkpoint)
        Weights(checkpoint, {}, torch.float32)
    assert str(refused.value) == found


def test_a_model_of_a_hub_is_not_here_yet() -> None:
    config = load_config(["--model", "org/name"], {})
    assert config.model.wanted is not None and weights.finding(config.model).verdict == "skip"
    assert weights.finding(msgspec.structs.replace(config.model, path=EMBEDDED_MODEL, wanted=None)).verdict == "ok"
