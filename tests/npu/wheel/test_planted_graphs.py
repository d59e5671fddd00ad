"""The checks of tests/npu/test_graphs.py on the real torch_npu, and the mistakes that they catch there as well."""

import contextlib
from collections.abc import Iterator

import pytest
import torch

from model.net.multimodal import MultimodalLM
from tests.npu import test_graphs as ring0
from tests.npu.test_planted_graphs import MISTAKES, Mistake
from tests.npu.wheel.twins import load_on

pytestmark = pytest.mark.npu

HERE = [mistake for mistake in MISTAKES if mistake.name != "attention that cannot be updated"]  # torch_npu mends it


@pytest.fixture(scope="module")
def model(npu: torch.device, tmp_path_factory: pytest.TempPathFactory) -> MultimodalLM:
    return load_on(ring0.checkpoint_by_length(tmp_path_factory.mktemp("model")), npu, torch.bfloat16)


@pytest.fixture(autouse=True)
def whole(npu: torch.device) -> Iterator[None]:
    """A mistake may leave a stream that hangs: the stub drops its work and says so, once for each stream."""
    yield
    with contextlib.suppress(RuntimeError):
        torch.get_device_module(npu).synchronize()


def test_lengths_bases_and_scales(model: MultimodalLM) -> None:
    ring0.check_lengths(model)


def test_a_full_cache(model: MultimodalLM) -> None:
    ring0.check_full_cache(model)


@pytest.mark.parametrize("mistake", HERE, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_is_caught(mistake: Mistake, model: MultimodalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.plant(monkeypatch)
    with pytest.raises(mistake.raises, match=mistake.says):
        mistake.check(model)
