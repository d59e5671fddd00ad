"""The model: a directory, or its name on a hub, by --model or as a word of its own."""

from pathlib import Path

import pytest

from configs.setting import HubModel, SettingsError
from configs.settings import load_config
from tests.rights import forbidden
from tests.tables import each_of


@pytest.mark.parametrize("argv", [["org/name", "--port", "1"], ["--port", "1", "org/name"]])
def test_the_model_needs_no_flag(argv: list[str]) -> None:
    """As `vllm serve` takes it."""
    config = load_config(argv, {})
    assert (config.model.wanted, config.http.port) == (HubModel("org/name"), 1)
    assert load_config([*argv, "--api-key", "sk-1"], {}).model == config.model


@each_of(
    ("given", "name", "revision"),
    [
        ("org/name", "org/name", None),
        ("Org-1/Na.me_2@v1.0", "Org-1/Na.me_2", "v1.0"),
        ("org/name@refs/pr/1", "org/name", "refs/pr/1"),
    ],
)
def test_a_model_may_be_named_as_on_a_hub(given: str, name: str, revision: str | None) -> None:
    model = load_config(["--model", given, "--hub", "modelscope"], {}).model
    assert (model.wanted, model.served_name, model.hub) == (HubModel(name, revision), name, "modelscope")
    assert str(model.wanted) == given
    assert load_config(["--model", given, "--served-model-name", "mine"], {}).model.served_name == "mine"


def test_a_directory_of_that_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    model = load_config(["--model", "org/name"], {}).model
    assert (model.path, model.wanted, model.served_name) == (tmp_path / "org" / "name", None, "name")


def test_what_may_lie_here_is_not_asked_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    monkeypatch.chdir(tmp_path)
    with forbidden(tmp_path / "org"), pytest.raises(SettingsError, match="^--model: /.*/org/name cannot be read: Perm"):
        load_config(["--model", "org/name"], {})
    assert load_config(["--model", "org/name"], {}).model.wanted == HubModel("org/name")


@each_of(
    "given", ["name", "./org/name", "../org/name", "/org/name", "~/org/name", "a/b/c", "../name", "org/name@",
              "org/name@../x", "org/name@x/../y", "org/name@/x", "org/na me", "örg/name", "org/file.gguf"],
)  # fmt: skip
def test_what_is_neither_is_one_sentence(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "file.gguf").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="^--model: /.* is not a directory, and a model on a hub is named ORG/NAME"):
        load_config(["--model", given], {})
