"""What ViP-LLaVA's files may say, and what stops the load."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from model.families.llava.recipe import _vip_features
from model.registry import family_of
from tests.model.engine.engine_harness import engine_harness_at, picture
from tests.parity.engine_check import prepared_one_by_one
from tests.parity.harness import load_ours
from tests.published.edits import edit_json
from tests.tables import each_of
from tests.tiny.llava import VISION
from tests.tiny.vip_llava import write_vip_llava

pytestmark = pytest.mark.network


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_vip_llava(tmp_path / "tiny")


def features(values: Mapping[str, Any]) -> tuple[int, ...]:
    return _vip_features(ConfigSection(dict(values), "config.json"))


def test_which_blocks_are_taken() -> None:
    """Without a key the class's; the older key wins, as in transformers."""
    assert features({}) == (23, 20, 17, 14, 6)
    assert features({"vision_feature_layer": -2}) == (23,)
    assert features({"vision_feature_layers": [24, 1], "vision_feature_layer": [3]}) == (24, 1)


@each_of(
    ("values", "said"),
    [
        ({"vision_feature_layers": [-2, 7]}, "vision_feature_layers 7 is no output of 6 blocks"),
        ({"vision_feature_layers": [0]}, "vision_feature_layers 0 is no output of 6 blocks"),
        ({"vision_feature_layers": None, "vision_feature_layer": -7}, "layer -7 is no output of 6 blocks"),
        ({"vision_feature_layers": []}, r"'vision_feature_layers' is \[\], expected a list of numbers"),
        ({"vision_feature_layers": [1.5]}, r"is \[1\.5\], expected a list of numbers"),
        ({"vision_feature_layers": "-2"}, "is '-2', expected a list of numbers"),
        ({"vision_feature_layers": True}, "is True, expected a list of numbers"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act = 'relu'"),
        ({"projector_layernorm_eps": "small"}, "'projector_layernorm_eps' is 'small', expected float"),
    ],
    copied=("path",),
)
def test_what_is_not_supported_stops_the_load(path: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        load_ours(edit_json(path, lambda config: config.update(values)))


def test_a_directory_that_names_one_block_beside_weights_of_five(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a report has the hub's 7B: transformers does not load it. The published five are taken."""
    vision = {**VISION, "num_hidden_layers": 12}
    five = {"vision_feature_layers": [-2, -5, -8, -11, 6], "vision_config": vision}
    path = write_vip_llava(tmp_path / "deep", values=five)

    def name_one(config: dict[str, Any]) -> None:
        del config["vision_feature_layers"]
        config["vision_feature_layer"] = -2

    load_ours(edit_json(path, name_one))  # every tensor is taken, or it raises
    assert "names one block of the tower, the weights take several: (-2, -5, -8, -11, 6)" in caplog.text


def test_the_class_token_is_never_shown(path: Path) -> None:
    checkpoint = Checkpoint(edit_json(path, lambda config: config.update(vision_feature_select_strategy="full")))
    with pytest.raises(CheckpointError, match="vision_feature_select_strategy = 'full'"):
        family_of(checkpoint).host(checkpoint, 1 << 30)


def test_a_directory_of_before_there_were_templates(path: Path, tmp_path: Path) -> None:
    """It gets one of ours, which renders the same."""
    found = []
    for name in ("with", "without"):
        with engine_harness_at(path, tmp_path / name) as harness:
            ((_, generate),) = prepared_one_by_one(harness, {"one": ["red", picture(60, 60, 1), "green or blue?"]})
            found.append([max(token, -1) for token in generate.prepared.input_ids.tolist()])
        (path / "chat_template.json").unlink(missing_ok=True)
    assert found[0] == found[1] and len(found[0]) > 16
