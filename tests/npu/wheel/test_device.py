"""Which NPUs are opened, by the name that the driver gives them; and the process group of one."""

import os
import subprocess
import sys

import pytest

from tests.npu.pairs import REPO

pytestmark = pytest.mark.npu

STEP = """
import torch
from pathlib import Path
from model.device import DeviceError, resolve
from model.ops.load import load_ops
try:
    device, dtype = resolve("npu", "bfloat16")
except DeviceError as error:
    print(f"refused: {error}")
else:
    ops = load_ops(device, dtype)
    x = torch.ones(2, 64, dtype=dtype, device=device)
    print(torch.get_device_module(device).get_device_name(0), ops.rms_norm(x, x[0], 1e-6).sum().item())
"""

GROUP = """
import os
import torch
import torch.distributed as dist
from model.device import resolve
device, _ = resolve("npu", "bfloat16")
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
store = dist.HashStore()
dist.init_process_group("hccl", store=store, rank=0, world_size=1)
x = torch.arange(4.0, device=device)
dist.all_reduce(x)
dist.broadcast(x, 0)
dist.barrier()
beside = dist.new_group([0], backend="gloo")
y = torch.ones(2)
dist.all_reduce(y, group=beside)
print(dist.get_backend(), dist.get_world_size(), x.tolist(), y.tolist())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("name", ["Ascend910B3", "Ascend910_9391"])
def test_atlas_a2_and_a3_run(name: str) -> None:
    assert _said(STEP, NPU_STUB_SOC=name) == f"{name} 128.0"


def test_another_npu_is_refused() -> None:
    said = _said(STEP, NPU_STUB_SOC="Ascend310P3")
    assert said == "refused: --device npu: Ascend310P3 is not served; Atlas A2 (Ascend910B) and A3 (Ascend910_93) are"


def test_a_process_group_of_one() -> None:
    assert _said(GROUP) == "hccl 1 [0.0, 1.0, 2.0, 3.0] [1.0, 1.0]"


def _said(code: str, **environment: str) -> str:
    """The last line that a process of its own prints: the driver tells its name once."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]
