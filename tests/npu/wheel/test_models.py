"""Every family through the engine: what the stub's NPU gives is what ring 0 gives, bit for bit, with graphs or not."""

from pathlib import Path

import pytest
import torch

from tests.npu.wheel.families import FAMILIES, requests_for
from tests.npu.wheel.twins import assert_twins, load_on, run_on

pytestmark = pytest.mark.npu


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name: str, npu: torch.device, tmp_path: Path) -> None:
    """A batch of decodes and of chunks, some of which end inside a medium."""
    family = FAMILIES[name]
    path = family.write(tmp_path / "checkpoint")
    ways = {"npu": (npu, False), "graphs": (npu, True), "cpu": (torch.device("cpu"), False)}
    launched, replayed, ring0 = (
        run_on(
            load_on(path, device, torch.bfloat16), path, tmp_path / way, requests_for(family), tokens=13, graphs=graphs
        )
        for way, (device, graphs) in ways.items()
    )
    assert launched.cut_media > 0 and launched.mixed > 0
    assert_twins(launched, ring0)
    assert_twins(replayed, ring0)
