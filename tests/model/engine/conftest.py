"""One tiny checkpoint and its model for all engine tests, and a host whose segments lie in the test's own folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import EngineHarness, engine_harness_at
from tests.parity.harness import load_ours
from tests.tiny.qwen2_vl import write_qwen2_vl


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_vl(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> MultimodalLM:
    return load_ours(checkpoint)


@pytest.fixture
def harness(checkpoint: Path, tmp_path: Path) -> Iterator[EngineHarness]:
    with engine_harness_at(checkpoint, tmp_path / "root") as found:
        yield found
