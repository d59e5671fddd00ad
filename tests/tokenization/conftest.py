"""One tiny checkpoint for the tests of this room."""

import pytest

from configs.checkpoint import Checkpoint
from tests.tiny import write_qwen2_vl
from tokenization.text import TextCodec


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint(write_qwen2_vl(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="session")
def codec(tiny: Checkpoint) -> TextCodec:
    return TextCodec.from_checkpoint(tiny)
