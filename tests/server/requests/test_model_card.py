"""What clients are told of a model is what its checkpoint and the settings say."""

import json
from pathlib import Path

import pytest

from configs.serve import ModelConfig, ServeConfig
from server.requests.model_card import read_model_card
from tests.tiny.qwen2_5_omni import OmniLayout, write_qwen2_5_omni
from tests.tiny.qwen2_vl import write_json


@pytest.mark.parametrize("layout", ["hub", "thinker", "v5"])
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
