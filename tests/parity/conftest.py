"""Both families of the second Qwen line, for tests that hold for either."""

from pathlib import Path

import pytest

from configs.checkpoint import Checkpoint
from model.registry import family_of
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_vl import write_qwen2_vl
from tokenization.processor import Processor

MAX_PIXELS = 28 * 28 * 1280


def written(family: str, path: Path) -> Path:
    """A tiny checkpoint of this family."""
    return write_qwen2_vl(path, tied=False) if family == "qwen2_vl" else write_qwen2_5_vl(path)


@pytest.fixture(scope="session", params=["qwen2_vl", "qwen2_5_vl"])
def qwen2(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(written(request.param, tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="session")
def host(qwen2: Checkpoint) -> Processor:
    return family_of(qwen2).processor(qwen2, MAX_PIXELS)
