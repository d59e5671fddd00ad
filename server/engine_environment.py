"""What an engine's libraries are told by variables, where the user says nothing: kernels, allocation, cores."""

from collections.abc import Mapping
from pathlib import Path

_ALLOCATOR, _OF_TORCH = "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
_DCMI = "libdcmi.so"  # of the driver; without it torch_npu does not start where it is to ask for the card's cores

# On a CPU each number of rows of each linear is a kernel of its own, of about 0.6 MiB; oneDNN and torch keep the last
# 1,024 each. So many suffice for the decode steps of 16 sequences, which come again and again, and the chunks between
# them (docs/log.md, 2026-11-24): a chunk of a size that did not come before compiles its kernels either way.
_KERNELS = 192
_OF_TORCHS_LIST, _OF_ONEDNN, _OF_ONEDNN_TOO = (
    "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY",
)  # fmt: skip


def of_engine(env: Mapping[str, str]) -> dict[str, str]:
    """`env` of a process that may compute, with what it leaves open."""
    found = dict(env)
    found.setdefault(_OF_TORCHS_LIST, str(_KERNELS))
    if _OF_ONEDNN_TOO not in env:  # the older name, which the newer one would overrule
        found.setdefault(_OF_ONEDNN, str(_KERNELS))
    # Pictures of many sizes leave holes between segments of one size. torch_npu refuses both variables together.
    if _OF_TORCH not in env:
        found.setdefault(_ALLOCATOR, "expandable_segments:True")
    if any(Path(folder, _DCMI).exists() for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder):
        found.setdefault("CPU_AFFINITY_CONF", "1,npu_affine:1")  # all threads on the cores of the card's NUMA node
    return found
