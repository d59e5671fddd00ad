"""Of the ids that mark media a checkpoint must hold only those that the server places in prompts: the pads."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import CheckpointError
from server.requests.model_card import read_model_card
from tests.parity.harness import load_hf, load_ours
from tests.parity.theirs import transformers
from tests.published.layouts import SEEING, WRITERS, change, config_of, host_of
from tests.tiny.qwen2_vl import write_json

pytestmark = pytest.mark.network

NOT_PLACED = ("vision_start_token_id", "vision_end_token_id", "vision_token_id")


def saved_by_transformers(path: Path, drop: tuple[str, ...]) -> dict[str, Any]:
    """config.json as transformers 5 saves it of a checkpoint that does not name the keys of `drop`."""
    change(path, "config.json", **dict.fromkeys(drop))
    config = transformers.AutoConfig.from_pretrained(path)
    config.save_pretrained(path)
    found: dict[str, Any] = json.loads((path / "config.json").read_text())
    return found


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_a_save_with_a_small_vocabulary_loads(tmp_path: Path, name: str) -> None:
    """The class knows no vision_token_id, and writes ids of the full vocabulary for keys that were not there."""
    path = WRITERS[name](tmp_path)
    before = host_of(path)
    assert not {"vision_token_id"} & {
        *transformers.Qwen2VLConfig().to_dict(),
        *transformers.Qwen2_5_VLConfig().to_dict(),
    }
    saved = saved_by_transformers(path, NOT_PLACED)
    assert "vision_token_id" not in saved and saved["vision_start_token_id"] == 151652
    assert read_model_card(config_of(path)).modalities == {"image", "video"}
    ours = load_ours(path)
    assert ours.vocab_size == load_hf(path).get_input_embeddings().weight.shape[0] < 1000
    assert ours.banned_ids == sorted([*before.placeholders.values(), before.tokenizer.special["<|vision_pad|>"]])


def test_what_the_tokenizer_holds_is_banned_also_where_config_names_nothing(tmp_path: Path) -> None:
    path = WRITERS["qwen2_vl"](tmp_path)
    named = load_ours(path).banned_ids
    change(path, "config.json", **dict.fromkeys(NOT_PLACED))
    assert load_ours(path).banned_ids == named and len(named) == 5
    assert {host_of(path).tokenizer.special[f"<|vision_{end}|>"] for end in ("start", "end", "pad")} < set(named)


def test_omni_without_the_marks_of_a_sound_hears_but_not_in_videos(tmp_path: Path) -> None:
    """They are placed only around a video with its sound."""
    path = WRITERS["qwen2_5_omni"](tmp_path)
    assert "audio_in_video" in host_of(path).features
    config = json.loads((path / "config.json").read_text())
    for key in ("audio_start_token_id", "vision_start_token_id", "vision_end_token_id"):
        del config["thinker_config"][key]
    config["thinker_config"]["audio_end_token_id"] = 151648
    write_json(path / "config.json", config)
    assert "audio_in_video" not in host_of(path).features and "audio" in host_of(path).modalities
    assert len(load_ours(path).banned_ids) == 6  # three pads, and three marks by their names in the tokenizer


@pytest.mark.parametrize("name", SEEING)
def test_a_pad_that_is_nowhere_stops_the_start(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path)
    config = json.loads((path / "config.json").read_text())
    own = config.get("thinker_config", config)
    key = "image_token_index" if name == "qwen2_5_omni" else "image_token_id"
    where = "config.json: thinker_config" if "thinker_config" in config else "config.json"
    own[key] = 9999
    write_json(path / "config.json", config)
    with pytest.raises(CheckpointError, match=f"^{where}: '{key}' is 9999, an id that tokenizer.json does not hold"):
        host_of(path)
    del own[key]
    write_json(path / "config.json", config)
    with pytest.raises(
        CheckpointError, match=f"^{where}: 'image_token_id' is missing, and its class default is 151655"
    ):
        host_of(path)


def test_a_pad_of_a_sound_that_is_nowhere_stops_the_start(tmp_path: Path) -> None:
    path = WRITERS["qwen2_audio"](tmp_path)
    change(path, "config.json", audio_token_index=None)
    with pytest.raises(CheckpointError, match="^config.json: 'audio_token_id' is missing, .* default is 151646, an id"):
        host_of(path)


def test_ids_beyond_the_logits_are_neither_banned_nor_embedded(tmp_path: Path) -> None:
    path = WRITERS["qwen2_vl"](tmp_path)
    model = load_ours(path)
    beyond = replace(model, media_token_ids=model.media_token_ids | {model.vocab_size, 151654})
    assert beyond.banned_ids == model.banned_ids
    change(path, "config.json", image_token_id=model.vocab_size)
    with pytest.raises(
        CheckpointError, match="config.json: 'image_token_id' is 419, for which vocab_size 419 leaves no"
    ):
        load_ours(path)
