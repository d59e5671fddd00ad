"""A double of torch_npu at the edge of the machine: a module of that name on the path, which makes torch know NPUs."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.backend_registration import rename_privateuse1_backend

A2, A3 = "Ascend910B3", "Ascend910_9391"


class NpuDouble:
    """`torch.npu` as far as a device is resolved; `calls` are what was asked of it, in order."""

    def __init__(self, soc: str = A2, *, count: int = 1, broken: str = "") -> None:
        self.calls: list[str] = []
        self._soc, self._count, self._broken = soc, count, broken

    def is_available(self) -> bool:
        return self._count > 0

    def device_count(self) -> int:
        return self._count

    def get_device_name(self, device: int) -> str:
        return self._soc

    def set_device(self, device: int) -> None:
        self.calls.append(f"set_device({device})")
        if self._broken:
            raise RuntimeError(self._broken)

    def set_compile_mode(self, *, jit_compile: bool) -> None:
        self.calls.append(f"set_compile_mode(jit_compile={jit_compile})")

    def synchronize(self, device: torch.device) -> None:
        self.calls.append(f"synchronize({device})")

    def empty_cache(self) -> None:
        self.calls.append("empty_cache()")

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        self.calls.append(f"mem_get_info({device})")
        return 60 << 30, 61 << 30


def install(monkeypatch: pytest.MonkeyPatch, where: Path, npu: NpuDouble, *, says: Exception | None = None) -> None:
    """Let `import torch_npu` find a module below `where` that brings `npu`, or raises what it `says`."""
    text = f"raise {says!r}" if says is not None else ""
    (where / "torch_npu.py").write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(where)
    monkeypatch.setitem(sys.modules, "torch_npu", ModuleType("torch_npu"))  # what is imported now goes with the test
    del sys.modules["torch_npu"]
    # torch keeps this name for the rest of the process, as torch_npu gives it; without `torch.npu` it changes nothing.
    rename_privateuse1_backend("npu")
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    monkeypatch.setattr(torch, "get_device_module", torch.get_device_module.__wrapped__)  # it remembers its answers
