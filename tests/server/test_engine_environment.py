"""What an engine's libraries are told by variables, and that its compiled kernels do not grow without end."""

import os
import subprocess
import sys
from pathlib import Path

from configs.settings import REPO
from server.engine_environment import of_engine
from tests.server.tables import each_of

KERNELS = {"LRU_CACHE_CAPACITY": "192", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "192"}
ALLOCATOR = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
# MiB of a process after 400 sizes of a step, and after 400 more; 0 where no weights are packed.
SIZES = """
import os, torch
from model.ops.torch_ops import TorchOps
torch.set_num_threads(1)
ops = TorchOps(torch.device("cpu"), torch.float32)
linear = ops.linear(torch.randn(64, 32))
for n in range(1, 801):
    linear(torch.zeros(n, 32))
    if n % 400 == 0:
        print(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20 if ops.prepacks else 0)
"""


@each_of(
    ("env", "found"),
    [
        ({}, KERNELS | ALLOCATOR),
        ({"PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:64"}, KERNELS),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, KERNELS),  # torch_npu refuses both
        ({"LD_LIBRARY_PATH": ":/nowhere:"}, KERNELS | ALLOCATOR),
        ({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "7", "LRU_CACHE_CAPACITY": "8"}, ALLOCATOR),
        ({"DNNL_PRIMITIVE_CACHE_CAPACITY": "7"}, {"LRU_CACHE_CAPACITY": "192"} | ALLOCATOR),
    ],
)
def test_what_the_user_leaves_open_is_filled(env: dict[str, str], found: dict[str, str]) -> None:
    assert of_engine(env) == {**env, **found}


def test_cores_are_the_cards_where_the_driver_can_be_asked_for_them(tmp_path: Path) -> None:
    (tmp_path / "libdcmi.so").touch()
    env = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path}"}
    assert of_engine(env) == {**env, **KERNELS, **ALLOCATOR, "CPU_AFFINITY_CONF": "1,npu_affine:1"}
    assert of_engine({**env, "CPU_AFFINITY_CONF": "0"})["CPU_AFFINITY_CONF"] == "0"


def grown(env: dict[str, str]) -> int:
    """MiB that 400 more sizes of a step take."""
    told = subprocess.run(
        [sys.executable, "-c", SIZES], cwd=REPO, env=env, capture_output=True, text=True, timeout=240, check=True
    )
    before, after = map(int, told.stdout.split())
    return after - before


def test_an_engine_that_saw_many_sizes_of_steps_grows_no_more() -> None:
    own = {name: value for name, value in os.environ.items() if name not in KERNELS}
    assert grown(of_engine(own)) <= 64  # over 200 without: docs/log.md, 2026-11-24
