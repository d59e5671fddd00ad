"""ViP-LLaVA against transformers, from the same files: ids, logits in chunks, greedy tokens of mixed batches."""

from pathlib import Path
from typing import Any

import pytest

from tests.model.engine.engine_harness import engine_at, engine_harness_at
from tests.parity.engine_check import Setup, submit_all
from tests.parity.pictures import MEMBERS, THREE, setup_at
from tests.tiny.vip_llava import write_vip_llava

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    path, root = write_vip_llava(tmp_path_factory.mktemp("tiny")), tmp_path_factory.mktemp("shm") / "root"
    return setup_at(path, root, {**MEMBERS, "three": THREE})


@pytest.mark.parametrize(("tokens", "every"), [(7, 3), (2048, 0)])
def test_mixed_batches(setup: Setup, tokens: int, every: int, tmp_path: Path) -> None:
    with engine_harness_at(setup.path, tmp_path / "root") as harness:
        submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens), every)


@pytest.mark.parametrize(
    "values",
    [
        {"vision_feature_layers": -2}, {"vision_feature_layer": [-1, 2, 2]},
        {"vision_feature_layer": [1, 2], "vision_feature_layers": [3, 1], "projector_layernorm_eps": 0.5},
    ],
)  # fmt: skip
def test_other_features_of_the_tower(values: dict[str, Any], tmp_path: Path) -> None:
    """One; the last one, and another twice; both keys, and another epsilon: as `setup_at` compares."""
    path = write_vip_llava(tmp_path / "tiny", values=values)
    setup_at(path, tmp_path / "root", {"wide": MEMBERS["wide"]})
