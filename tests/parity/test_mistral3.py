"""Mistral Small 3.1 against transformers, from the same files: ids, logits in chunks, greedy tokens of mixed batches."""

from pathlib import Path

import pytest

from tests.model.engine.engine_harness import engine_at, engine_harness_at
from tests.parity.engine_check import Setup, submit_all
from tests.parity.pictures import MEMBERS, THREE, setup_at
from tests.parity.pixtral_reference import let_it_load
from tests.tiny.mistral3 import write_mistral3


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    let_it_load()
    path, root = write_mistral3(tmp_path_factory.mktemp("tiny")), tmp_path_factory.mktemp("shm") / "root"
    return setup_at(path, root, {**MEMBERS, "three": THREE})


@pytest.mark.parametrize("every", [0, 3])
@pytest.mark.parametrize("tokens", [7, 64, 2048])
def test_mixed_batches(setup: Setup, tokens: int, every: int, tmp_path: Path) -> None:
    with engine_harness_at(setup.path, tmp_path / "root") as harness:
        submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens), every)
