"""Every family through the engine: what the stub's NPU gives is what ring 0 gives, bit for bit."""

from pathlib import Path

import pytest
import torch

from tests.npu.wheel.families import FAMILIES, requests_for
from tests.npu.wheel.twins import assert_twins, load_on, run_on

pytestmark = pytest.mark.npu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(name: str, dtype: torch.dtype, npu: torch.device, tmp_path: Path) -> None:
    """A batch of decodes and of chunks, some of which end inside a medium."""
    family = FAMILIES[name]
    path = family.write(tmp_path / "checkpoint")
    said = [
        run_on(load_on(path, device, dtype), path, tmp_path / device.type, requests_for(family), tokens=13)
        for device in (npu, torch.device("cpu"))
    ]
    assert said[0].cut_media > 0 and said[0].mixed > 0
    assert_twins(*said)
