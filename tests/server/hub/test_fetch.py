"""What is fetched of a model, in which order, and what is refused before its weights come."""

import errno
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import CheckpointError
from configs.serve import ModelConfig, ServeConfig
from configs.setting import HubModel
from server.http.health import DownloadProgress
from server.hub import fetch as module
from server.hub.client import HubError, told
from server.hub.fetch import fetch, with_checkpoint
from tests.tables import each_of

CONFIG = {"architectures": ["Qwen2VLForConditionalGeneration"]}
INDEX = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}


class Shelf:
    """A client whose hub is a dictionary."""

    where = "the shelf"
    revision = "rev"

    def __init__(self, folder: Path, files: Mapping[str, object]) -> None:
        self.folder = folder
        self.files = {name: json.dumps(value).encode() for name, value in files.items()}
        self.fetched: list[str] = []

    def fetch(self, names: Sequence[str]) -> Path:
        for name in names:
            self.fetched.append(name)
            (self.folder / name).write_bytes(self.files[name])
        return self.folder

    def sizes(self) -> Mapping[str, int]:
        return {name: len(body) for name, body in self.files.items()}


def fetched(tmp_path: Path, files: Mapping[str, object]) -> list[str]:
    shelf = Shelf(tmp_path, files)
    assert fetch(shelf, "org/name", DownloadProgress()) == tmp_path
    return shelf.fetched


@each_of(
    ("files", "weights"),
    [
        (["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"], ["model.safetensors"]),
        (["pytorch_model.bin", "consolidated.safetensors"], ["pytorch_model.bin"]),
        (["pytorch_model.bin", "model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors"],
         ["model-1.safetensors", "model-2.safetensors"]),
    ],
)  # fmt: skip
def test_one_format_of_the_weights_comes_last(tmp_path: Path, files: list[str], weights: list[str]) -> None:
    got = fetched(tmp_path, {"config.json": CONFIG, **{name: INDEX for name in files}})
    small = [name for name in files if name.endswith(".json")]
    assert got == ["config.json", *sorted(["config.json", *small]), *weights]


def test_settings_tokenizers_and_templates_are_what_is_small(tmp_path: Path) -> None:
    names = ["chat_template.jinja", "merges.txt", "qwen.tiktoken", "tokenizer.json", "vocab.json"]
    others = ["LICENSE", "README.md", "notes.txt", "code.py", "image.png", "sub/config.json", ".hidden.json"]
    got = fetched(tmp_path, {"config.json": CONFIG, "model.safetensors": 1, **dict.fromkeys([*names, *others], {})})
    assert sorted(got[1:-1]) == sorted(["config.json", *names])


@each_of(
    ("files", "words"),
    [
        ({"config.json": {"architectures": ["Other"]}}, "architecture 'Other' is not supported"),
        ({"config.json": {**CONFIG, "quantization_config": {"quant_method": "awq"}}}, "quantised"),
        ({"config.json": CONFIG, "quantize_config.json": {"bits": 4}}, "quantize_config.json: the weights are quant"),
        ({"config.json": CONFIG}, "no weights here"),
        ({"config.json": {**CONFIG, "transformers_weights": "../x"}, "../x": 1}, "transformers_weights"),
        ({"config.json": CONFIG, "model.safetensors.index.json": {"weight_map": {"a": "../x"}}, "../x": 1},
         "'../x' is not a file name"),
        ({"config.json": CONFIG, "model.safetensors.index.json": INDEX, "model-1.safetensors": 1}, "is missing"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_before_its_weights(
    tmp_path: Path, files: Mapping[str, object], words: str
) -> None:
    weights = {"model.safetensors": 1} if "quant" in words or "Other" in words else {}
    shelf = Shelf(tmp_path, {**files, **weights})
    with pytest.raises(CheckpointError, match=words.replace("(", ".")):
        fetch(shelf, "org/name", DownloadProgress())
    assert not any(name.endswith((".safetensors", "x")) for name in shelf.fetched)


def test_a_disk_that_is_too_small_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2000))
    shelf = Shelf(tmp_path, {"config.json": CONFIG, "model.safetensors": "x" * 3000})
    with pytest.raises(HubError, match=r"^2.932 KiB are still .* has 1.953 KiB free: .*HF_HOME"):
        fetch(shelf, "org/name", DownloadProgress())
    assert shelf.fetched == ["config.json", "config.json"]


@each_of(
    ("number", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EACCES, "may not write under /x"), (errno.ECONNRESET, "start again")],
)
def test_an_error_of_the_machine_is_one_sentence(number: int, words: str) -> None:
    assert words in str(told(OSError(number, "why", "/x"), "org/name", "HF_HOME"))


def config_of(wanted: HubModel | None) -> ServeConfig:
    return ServeConfig(model=ModelConfig(path=Path("/here"), served_name="x", wanted=wanted))


def use(monkeypatch: pytest.MonkeyPatch, client: Any) -> None:
    monkeypatch.setitem(module.CLIENTS, "huggingface", lambda wanted, progress: client)


def test_a_directory_is_left_as_it_is() -> None:
    config = config_of(None)
    assert with_checkpoint(config, DownloadProgress()) is config


def test_a_name_becomes_a_directory_and_an_exact_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Shelf(tmp_path, {"config.json": CONFIG, "model.safetensors": 1}))
    model = with_checkpoint(config_of(HubModel("org/name")), DownloadProgress()).model
    assert (model.path, str(model.wanted), model.served_name) == (tmp_path, "org/name@rev", "x")


def test_settings_alone_are_fetched_where_no_weights_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    shelf = Shelf(tmp_path, {"config.json": CONFIG, "tokenizer.json": {}, "model.safetensors": 1})
    use(monkeypatch, shelf)
    model = with_checkpoint(config_of(HubModel("org/name")), DownloadProgress(), weights=False).model
    assert (model.path, str(model.wanted)) == (tmp_path, "org/name@rev")
    assert shelf.fetched == ["config.json", "config.json", "tokenizer.json"]


def test_a_refused_checkpoint_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, Shelf(tmp_path, {"config.json": {"architectures": ["Other"]}}))
    with pytest.raises(CheckpointError, match="^org/name@v2: config.json: architecture 'Other'"):
        with_checkpoint(config_of(HubModel("org/name", "v2")), DownloadProgress())
