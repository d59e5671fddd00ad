"""What torch_npu is told by variables, where the user says nothing: how it allocates, and on which cores it runs."""

from collections.abc import Mapping
from pathlib import Path

_ALLOCATOR, _OF_TORCH = "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
_DCMI = "libdcmi.so"  # of the driver; without it torch_npu does not start where it is to ask for the card's cores


def of_engine(env: Mapping[str, str]) -> dict[str, str]:
    """`env` of a process that may compute on an NPU, with what it leaves open."""
    found = dict(env)
    # Pictures of many sizes leave holes between segments of one size. torch_npu refuses both variables together.
    if _OF_TORCH not in env:
        found.setdefault(_ALLOCATOR, "expandable_segments:True")
    if any(Path(folder, _DCMI).exists() for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder):
        found.setdefault("CPU_AFFINITY_CONF", "1,npu_affine:1")  # all threads on the cores of the card's NUMA node
    return found
