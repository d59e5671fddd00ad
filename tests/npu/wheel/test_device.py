"""Which NPUs are opened, by the name that the driver gives them; and the process group of one."""

import json
import os
import subprocess
import sys

import pytest

from tests.npu.pairs import REPO
from tests.npu.wheel.launches import golden

pytestmark = pytest.mark.npu

STEPS = """
import json
import tempfile
from pathlib import Path
from model.device import DeviceError
from tests.npu.wheel.launches import count_steps, recorded
from tests.npu.wheel.twins import open_npu
try:
    npu = open_npu()
except DeviceError as error:
    print(f"refused: {error}")
else:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(recorded(count_steps(npu, Path(folder)), {})["steps"]))
"""

GROUP = """
import tempfile
from pathlib import Path
import torch
import torch.distributed as dist
from model.device import resolve
from model.ops.collectives import join
device, _ = resolve("npu", "bfloat16")
with tempfile.TemporaryDirectory() as folder:
    ranks = join(0, 1, Path(folder, "meeting"), device)
    x = torch.arange(4.0, device=device)
    total, joined = ranks.all_reduce(x), ranks.all_gather(x[None])
    dist.broadcast(x, 0)
    dist.barrier()
    beside = dist.new_group([0], backend="gloo")
    y = torch.ones(2)
    dist.all_reduce(y, group=beside)
    print(dist.get_backend(), dist.get_world_size(), total.tolist(), joined.tolist(), y.tolist())
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(("chip", "driver"), [("Ascend910_9391", "24.1.0"), ("Ascend910B3", "26.0.0")])
def test_other_chips_and_drivers_run(chip: str, driver: str) -> None:
    """The engine's steps, with the launches of an A2 and of the stub's driver: of an A3, too.

    Below 25.0 and 25.5, from where on copies and pinned memory are asked for in another way, and from 26.0 on.
    """
    assert json.loads(_said(STEPS, NPU_STUB_SOC=chip, NPU_STUB_DRIVER=driver)) == golden()["steps"]


def test_another_npu_is_refused() -> None:
    said = _said(STEPS, NPU_STUB_SOC="Ascend310P3")
    assert said == "refused: --device npu: Ascend310P3 is not served; Atlas A2 (Ascend910B) and A3 (Ascend910_93) are"


def test_a_process_group_of_one() -> None:
    assert _said(GROUP) == "hccl 1 [0.0, 1.0, 2.0, 3.0] [[0.0, 1.0, 2.0, 3.0]] [1.0, 1.0]"


def _said(code: str, **environment: str) -> str:
    """The last line that a process of its own prints: the driver tells its name once."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]
