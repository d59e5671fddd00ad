"""What the tests on the real torch_npu share: they run in an environment of tests/npu/install.py alone."""

import pytest
import torch

from tests.npu.wheel.twins import open_npu


@pytest.fixture(scope="session", autouse=True)
def npu() -> torch.device:
    """The stub's NPU, opened as the engine opens one."""
    return open_npu()
