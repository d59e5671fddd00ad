"""What clients are told of a model is what its checkpoint and the settings say."""

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from configs.checkpoint import CheckpointError
from configs.serve import EngineConfig, HttpConfig, MediaConfig, ModelConfig, ServeConfig
from configs.settings import EMBEDDED_MODEL, load_config
from model.families.qwen_vl.vocabulary import SPECIAL
from server.requests.model_card import read_model_card
from tests.tables import each_of
from tests.tiny.qwen2_5_omni import OmniLayout, write_qwen2_5_omni
from tests.tiny.qwen2_vl import write_json
from tests.tiny.qwen_vl import write_qwen_vl


@each_of("layout", ["hub", "thinker", "v5"])
def test_a_model_inside_another_is_asked_itself(tmp_path: Path, layout: OmniLayout) -> None:
    """Its length and its end tokens stand in thinker_config, where there is one."""
    path = write_qwen2_5_omni(tmp_path / "omni", layout=layout)
    (path / "generation_config.json").unlink()
    config = json.loads((path / "config.json").read_text())
    thinker = config.get("thinker_config", config)
    thinker["text_config"]["max_position_embeddings"] = 1234
    write_json(path / "config.json", config)
    card = read_model_card(ServeConfig(model=ModelConfig(path=path, served_name="x")))
    assert card.max_model_len == 1234 and card.defaults.eos_ids == (thinker["eos_token_id"],)
    assert {item.kind for item in card.largest} == card.modalities == {"image", "video", "audio"}


def test_a_preprocessor_config_that_was_not_copied_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same picture had 99 tokens, where it has 48 with the file. An empty file says nothing, and is there."""
    path = write_qwen2_5_omni(tmp_path / "omni")
    read_model_card(config_of(path))
    caplog.clear()
    (path / "preprocessor_config.json").unlink()
    card = read_model_card(config_of(path))
    said = [one.removeprefix(f"{path}: ").partition(" by the defaults")[0] for one in caplog.messages]
    assert {f"preprocessor_config.json is missing: {kind}s are prepared" for kind in ("image", "audio")} <= {*said}
    assert card.origins["pictures"] == "class defaults (preprocessor_config.json is missing)"
    caplog.clear()
    (path / "preprocessor_config.json").write_text("{}")
    read_model_card(config_of(path))
    assert not any("is missing" in one for one in caplog.messages)


def config_of(path: Path, **http: Any) -> ServeConfig:
    return ServeConfig(model=ModelConfig(path=path, served_name="served"), http=HttpConfig(**http))


def test_the_embedded_model_is_served_unless_another_is_named() -> None:
    card = read_model_card(load_config([], {}))
    said = json.loads((EMBEDDED_MODEL / "generation_config.json").read_text())
    config = json.loads((EMBEDDED_MODEL / "config.json").read_text())["thinker_config"]
    assert (card.name, card.root) == (EMBEDDED_MODEL.name, str(EMBEDDED_MODEL))
    assert card.max_model_len == config["text_config"]["max_position_embeddings"]
    assert card.defaults.eos_ids == tuple(said["eos_token_id"]) and card.defaults.temperature == 0
    assert card.modalities == {"image", "video", "audio"} == card.pads.keys() and card.supports_grounding
    ids = card.tokenizer.encode("a red ball")
    assert b"".join(map(card.tokenizer.token_bytes, ids)) == b"a red ball"


def test_names_and_limits_are_those_of_the_settings(tiny_checkpoint: Path) -> None:
    before = int(time.time())
    card = read_model_card(config_of(tiny_checkpoint, max_n=3))
    assert (card.name, card.root, card.max_n) == ("served", str(tiny_checkpoint), 3)
    assert before <= card.created <= time.time()
    assert (card.family, card.supports_grounding) == ("qwen2_vl", False)


def test_how_many_media_may_be_is_known_unless_a_window_drops_turns(tiny_checkpoint: Path, tmp_path: Path) -> None:
    config = config_of(tiny_checkpoint)
    assert read_model_card(config).max_items == config.media.max_items
    config = config_of(write_qwen_vl(tmp_path / "old", ["ok"]))
    assert read_model_card(config).max_items is None


def test_what_was_read_is_named_with_its_file(tiny_checkpoint: Path) -> None:
    origins = read_model_card(config_of(tiny_checkpoint)).origins
    assert origins["chat template"] == "chat_template.json" and origins["pictures"] == "preprocessor_config.json"


def test_no_template_is_compiled_in_the_process_that_faces_the_network(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Jinja computes what is constant when it compiles: this took 9.6 GiB of the server's memory at start."""
    for file in tiny_checkpoint.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_json(tmp_path / "chat_template.json", {"chat_template": "{% for %}"})
    assert read_model_card(config_of(tmp_path)).origins["chat template"] == "chat_template.json"


def test_a_shorter_length_may_be_asked_for_and_no_longer_one(tiny_checkpoint: Path) -> None:
    config = config_of(tiny_checkpoint)
    assert read_model_card(config).max_model_len == 32768
    short = msgspec.structs.replace(config, engine=EngineConfig(max_model_len=500))
    assert read_model_card(short).max_model_len == 500
    with pytest.raises(CheckpointError, match="--max-model-len 32769"):
        read_model_card(msgspec.structs.replace(config, engine=EngineConfig(max_model_len=32769)))


def test_the_largest_item_of_each_kind_grows_with_what_is_allowed(tiny_checkpoint: Path) -> None:
    def pads(max_pixels: int) -> dict[str, int]:
        config = msgspec.structs.replace(config_of(tiny_checkpoint), media=MediaConfig(max_pixels=max_pixels))
        card = read_model_card(config)
        assert {item.kind for item in card.largest} == card.modalities
        return {item.kind: item.n_tokens for item in card.largest}

    assert pads(28 * 28 * 100)["image"] == 100
    assert pads(28 * 28 * 1280)["image"] == 1280


@each_of("own_ids", [None, "<|endoftext|>", "<|im_end|>"])
def test_what_ends_an_answer_is_the_files_ids_and_then_the_familys(tmp_path: Path, own_ids: str | None) -> None:
    """The family's own stops come behind those of generation_config.json, and none comes twice."""
    path = write_qwen_vl(tmp_path / "qwen_vl", ["Hello"])
    special = {name: 257 + i for i, name in enumerate(SPECIAL)}
    said = {"chat_format": "chatml", "max_window_size": 6144}
    write_json(path / "generation_config.json", {**said, "eos_token_id": special[own_ids]} if own_ids else said)
    ids = read_model_card(config_of(path)).defaults.eos_ids
    assert sorted(ids) == sorted(special[name] for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    assert own_ids is None or ids[0] == special[own_ids]


def test_a_checkpoint_of_nobody_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"architectures": ["Other"]})
    with pytest.raises(CheckpointError, match="'Other' is not supported"):
        read_model_card(config_of(tmp_path))
