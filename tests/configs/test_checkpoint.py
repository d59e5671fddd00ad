"""Typed reads of a checkpoint's files: defaults where they may be, names where something is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection, text_config
from tests.rights import forbidden
from tests.tables import each_of


def write(path: Path, values: dict[str, Any], name: str = "config.json") -> Path:
    (path / name).write_text(json.dumps(values), encoding="utf-8")
    return path


def test_reads_are_typed() -> None:
    section = ConfigSection({"n": 3, "x": 2.5, "s": "silu", "null": None}, "config.json")
    assert section.read(int, "n") == 3
    assert section.read(float, "n") == 3.0 and isinstance(section.read(float, "n"), float)
    assert section.read(float, "x") == 2.5
    assert section.read(int, "missing", 7) == 7
    assert section.read(str, "null", "x") == "x"
    assert "n" in section and "null" not in section and "missing" not in section


def test_a_whole_number_may_be_written_as_a_float() -> None:
    """As Python's json gives it: JSON itself knows no difference, and the published loaders compute with both."""
    section = ConfigSection(json.loads('{"max_pixels": 1003520.0, "id": 2e0, "far": 1e300, "half": 0.5}'), "here")
    for found in (section.read(int, "max_pixels"), section.count("max_pixels")):
        assert found == 1003520 and type(found) is int
    assert section.token_id("id") == 2 and type(section.token_id("id")) is int
    for key in ("far", "half"):
        with pytest.raises(CheckpointError, match=f"here: '{key}' is"):
            section.count(key)


@each_of(
    ("kind", "key", "message"),
    [
        (int, "missing", "config.json: required key 'missing' is missing"),
        (int, "null", "config.json: required key 'null' is missing"),
        (int, "x", "config.json: 'x' is 2.5, expected int"),
        (int, "flag", "config.json: 'flag' is True, expected int"),
        (float, "flag", "config.json: 'flag' is True, expected float"),
        (bool, "one", "config.json: 'one' is 1, expected bool"),
        (str, "one", "config.json: 'one' is 1, expected str"),
    ],
)
def test_a_wrong_value_names_file_and_key(kind: type, key: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        ConfigSection({"x": 2.5, "flag": True, "one": 1, "null": None}, "config.json").read(kind, key)


def test_expect_stops_what_would_change_the_mathematics() -> None:
    section = ConfigSection({"hidden_act": "gelu"}, "config.json: text_config")
    section.expect("hidden_act", ("gelu",))
    section.expect("rope", ("default",), default="default")
    with pytest.raises(
        CheckpointError, match=r"config.json: text_config: hidden_act = 'gelu' is not supported \(.*'silu'"
    ):
        section.expect("hidden_act", ("silu",))
    with pytest.raises(CheckpointError, match="rope"):
        section.expect("rope", ("default",))


def test_children_and_merging() -> None:
    section = ConfigSection({"vision": {"depth": 2}, "text": [], "hidden": 5, "null": None}, "config.json")
    assert section.child("vision").read(int, "depth") == 2
    assert section.child("absent").read(int, "depth", 9) == 9
    with pytest.raises(CheckpointError, match="'text' is not an object"):
        section.child("text")
    with pytest.raises(CheckpointError, match="config.json: vision: required key 'width'"):
        section.child("vision").read(int, "width")
    merged = ConfigSection({"hidden": None, "depth": 1}, "inner").merged(section)
    assert merged.read(int, "hidden") == 5 and merged.read(int, "depth") == 1


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no config.json here"):
        Checkpoint(tmp_path)


def test_what_nobody_may_read_is_not_taken_for_absent(tmp_path: Path) -> None:
    closed, path = tmp_path / "closed", tmp_path / "open"
    closed.mkdir()
    path.mkdir()
    write(closed, {"eos_token_id": 1})
    checkpoint = Checkpoint(write(path, {}))
    (path / "generation_config.json").symlink_to(closed / "config.json")  # as a hub's cache has it
    with forbidden(closed):
        with pytest.raises(CheckpointError, match="^generation_config.json: cannot be read: Permission denied$"):
            checkpoint.file("generation_config.json")
        with pytest.raises(CheckpointError, match="^config.json: cannot be read: Permission denied$"):
            Checkpoint(closed)
    assert checkpoint.file("generation_config.json").read(int, "eos_token_id") == 1


def test_files_that_are_no_object_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="config.json: not valid JSON"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="config.json: not a JSON object"):
        Checkpoint(tmp_path)


def test_architecture_and_absent_files(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write(tmp_path, {"architectures": ["SomeForConditionalGeneration"]}))
    assert checkpoint.architecture == "SomeForConditionalGeneration"
    assert checkpoint.file("generation_config.json").read(int, "top_k", 0) == 0
    with pytest.raises(CheckpointError, match="'architectures' is missing"):
        _ = Checkpoint(write(tmp_path, {"architectures": []})).architecture


def test_what_git_lfs_leaves_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write(tmp_path, {}))
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4155736\n"
    (tmp_path / "tokenizer.json").write_text(pointer)
    with pytest.raises(CheckpointError, match="tokenizer.json: a Git LFS pointer, not the file: run `git lfs pull`"):
        checkpoint.file("tokenizer.json")


def test_the_language_models_own_keys_win_over_those_around_them() -> None:
    both = ConfigSection({"length": 1, "theta": 2, "text_config": {"length": 3, "theta": None}}, "config.json")
    assert (text_config(both).read(int, "length"), text_config(both).read(int, "theta")) == (3, 2)
    flat = ConfigSection({"length": 1}, "config.json")
    assert text_config(flat).read(int, "length") == 1


def test_a_section_replaces_the_older_file_and_says_where_it_stands(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write(tmp_path, {}))
    assert checkpoint.section("image_processor").origin() == "class defaults (preprocessor_config.json is missing)"
    write(tmp_path, {"a": 1, "b": 2}, "preprocessor_config.json")
    assert checkpoint.section("feature_extractor").origin() == "preprocessor_config.json"
    write(tmp_path, {"image_processor": {"a": 3}, "audio_processor": {"a": 4}}, "processor_config.json")
    pictures, sounds = checkpoint.section("image_processor"), checkpoint.section("feature_extractor")
    assert (pictures.read(int, "a"), pictures.read(int, "b", 0)) == (3, 0)
    assert (pictures.location, sounds.origin()) == (
        "processor_config.json: image_processor", "processor_config.json: audio_processor"
    )  # fmt: skip
    videos = checkpoint.section("video_processor")
    assert not videos and videos.origin("rules") == "rules (video_preprocessor_config.json is missing)"
    (tmp_path / "video_preprocessor_config.json").write_text("{}")
    assert (
        checkpoint.section("video_processor").origin("rules") == "rules (video_preprocessor_config.json says nothing)"
    )
    write(tmp_path, {"video_processor": []}, "processor_config.json")
    with pytest.raises(CheckpointError, match="processor_config.json: 'video_processor' is not an object"):
        checkpoint.section("video_processor")
