"""The sections of the self-test: what each tries, with which Ops and how often."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from configs.serve import Device, Dtype
from configs.settings import EMBEDDED_MODEL
from model.device import resolve
from model.ops.base import Ops
from model.ops.load import load_ops
from model.selftest.checkpoint import write_random
from model.selftest.copies import check_copies
from model.selftest.graphs import check_graphs, check_stale
from model.selftest.models import check_models
from model.selftest.operators import DTYPES, all_cases, check_operators, specification
from model.selftest.points import check_float32, check_points
from model.selftest.teller import Teller

_MODELS: Mapping[str, tuple[Dtype, ...]] = {
    "cpu": ("bfloat16",), "npu": ("bfloat16",), "cuda": ("bfloat16", "float16"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    tell: Teller
    device: torch.device
    quick: bool

    @property
    def repeats(self) -> int:
        """Calls of which a time is the mean."""
        return 1 if self.quick else 5 if self.device.type == "cpu" else 50

    @property
    def tokens(self) -> int:
        """Of each answer whose rate is measured."""
        return 8 if self.quick or self.device.type == "cpu" else 64

    def ops(self) -> list[Ops]:
        """One for each dtype that the device serves."""
        return [load_ops(self.device, dtype, checks=True) for dtype in DTYPES[self.device.type]]


def _operators(work: Work) -> None:
    check_operators(work.tell, work.ops(), specification(), all_cases(), work.repeats)


def _points(work: Work) -> None:
    check_float32(work.tell, work.device, work.repeats)
    for ops in (ops for ops in work.ops() if ops.dtype != torch.float32):
        check_points(work.tell, ops, _unbound(ops), specification(), work.repeats)


def _unbound(ops: Ops) -> Ops:
    if ops.device.type != "npu":
        return ops
    from model.ops.npu import NpuOps

    return NpuOps(ops.device, ops.dtype, bounds_tables=False)


def _copies(work: Work) -> None:
    check_copies(work.tell, work.device, (1, 64) if work.quick else (1, 64, 256), 3 if work.quick else 10)


def _graphs(work: Work) -> None:
    ops = load_ops(work.device, torch.bfloat16, checks=True)
    with TemporaryDirectory() as folder:
        paths = {"demo model": EMBEDDED_MODEL, "random, heads of 128": write_random(Path(folder))}
        for name, path in paths.items():
            check_graphs(work.tell, name, path, ops, 2 if work.quick else 8, work.repeats)


def _stale(work: Work) -> None:
    check_stale(work.tell, load_ops(work.device, torch.bfloat16, checks=True))


def _models(work: Work) -> None:
    kind: Device = "npu" if work.device.type == "npu" else "cuda" if work.device.type == "cuda" else "cpu"
    check_models(work.tell, kind, _MODELS[kind], work.tokens)


SECTIONS: Mapping[str, Callable[[Work], None]] = {
    "operators": _operators, "points": _points, "copies": _copies, "graphs": _graphs, "models": _models,
    "stale": _stale,
}  # fmt: skip


def open_device(device: Device) -> torch.device:
    """Raises DeviceError."""
    return resolve(device, "bfloat16")[0]


def versions(device: torch.device) -> dict[str, str]:
    """Of all that the numbers depend on, where it is known; nothing that names the machine."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.release()}
    for package in ("torch", "torch_npu"):
        try:
            found[package] = version_of(package)
        except PackageNotFoundError:
            continue
    if device.type == "cpu":
        return found
    module: Any = torch.get_device_module(device)
    found["chip"] = str(module.get_device_name(device))
    found["memory"] = f"{module.mem_get_info(device)[1] / 2**30:.1f} GiB"
    if device.type == "npu":
        for name in ("CANN", "DRIVER"):
            try:
                found[name.lower()] = str(module.utils.get_cann_version(name))
            except (AttributeError, RuntimeError):  # of another torch_npu, or of a driver that does not say
                continue
    return {name: text for name, text in found.items() if text}
