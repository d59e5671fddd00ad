"""What the tests on the real torch_npu share: they run in an environment of tests/npu/install.py alone."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from tests.npu.wheel.launches import OfFamily, run_family
from tests.npu.wheel.twins import open_npu


@pytest.fixture(scope="session", autouse=True)
def npu() -> torch.device:
    """The stub's NPU, opened as the engine opens one."""
    return open_npu()


@pytest.fixture(scope="session")
def of_family(npu: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], OfFamily]:
    """What a family said, and what it launched; it runs once."""
    root = tmp_path_factory.mktemp("families")
    return cache(lambda name: run_family(npu, root, name))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Each test leaves torch one thread: two that wait for each other took ten times the processor of one."""
    yield
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    assert n == 1, f"the test left {n} threads of torch"
