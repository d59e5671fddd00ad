"""The sections of the self-test: what each tries, with which Ops and how often."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from configs.serve import Device, Dtype
from configs.settings import EMBEDDED_MODEL, child_env
from model.device import resolve
from model.ops.base import Ops
from model.ops.load import load_ops
from model.selftest.attention_cases import BLOCK, WIDTHS, long_cases
from model.selftest.checkpoint import write_random
from model.selftest.copies import check_copies
from model.selftest.graphs import check_graphs, check_stale
from model.selftest.known import known_cases
from model.selftest.measured.encoder import PATCHES, check_encoder
from model.selftest.measured.masks import check_masks
from model.selftest.measured.matmul import ROWS, SIZES, check_matmul
from model.selftest.measured.profiler import check_profile
from model.selftest.measured.ranks import SIZES as RANK_SIZES
from model.selftest.measured.ranks import check_ranks
from model.selftest.models import check_given, check_models, one_request
from model.selftest.operators import DTYPES, all_cases, check_operators, specification
from model.selftest.points import check_float32, check_points
from model.selftest.teller import Teller

_OPERATORS = "ASCEND_OPP_PATH"
_MODELS: Mapping[str, tuple[Dtype, ...]] = {
    "cpu": ("bfloat16",), "npu": ("bfloat16",), "cuda": ("bfloat16", "float16"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    tell: Teller
    device: torch.device
    quick: bool
    checkpoint: Path | None = None  # of the section "given"
    ranks: int = 1  # of the section "ranks"

    @property
    def kind(self) -> Device:
        return "npu" if self.device.type == "npu" else "cuda" if self.device.type == "cuda" else "cpu"

    @property
    def small(self) -> bool:
        """The sizes of a card are hours of a CPU, which a stub of a card has, too."""
        return self.quick or self.device.type == "cpu"

    @property
    def products(self) -> tuple[Sequence[tuple[int, int]], Sequence[int]]:
        """Sizes and rows of matmul."""
        return (SIZES[:1], ROWS[:3]) if self.small else (SIZES, ROWS)

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


def _known(work: Work) -> None:
    check_operators(work.tell, work.ops(), specification(), known_cases(), work.repeats)


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
        (alone := Path(folder) / "alone").mkdir()
        paths = {
            "random, no shared keys": write_random(alone, num_key_value_heads=4), "demo model": EMBEDDED_MODEL,
            "random, heads of 128": write_random(Path(folder)),
        }  # fmt: skip
        for name, path in paths.items():
            check_graphs(work.tell, name, path, ops, 2 if work.quick else 8, work.repeats)
        for width in WIDTHS[:1] if work.small else WIDTHS:
            name = f"tables of {width:,} blocks"
            most, repeats = (8, 1) if work.small else (64, work.repeats)
            path = paths["random, heads of 128"]
            check_graphs(work.tell, name, path, ops, 2, repeats, longest=width * BLOCK, most=most)


def _profile(work: Work) -> None:
    with TemporaryDirectory() as folder:
        path = write_random(Path(folder))
        check_profile(work.tell, work.device.type, "random, heads of 128", partial(one_request, path, Path(folder)))


def _contexts(work: Work) -> None:
    few = 8 if work.small else 64
    cases = long_cases(few)
    check_operators(
        work.tell, [load_ops(work.device, torch.bfloat16, checks=True)], specification(), cases, work.repeats
    )
    check_masks(work.tell, work.device, few, (1024,) if work.small else (1024, 8192), work.repeats)


def _matmul(work: Work) -> None:
    check_matmul(work.tell, work.device, *work.products, work.repeats)


def _nz(work: Work) -> None:
    if work.device.type != "npu":
        work.tell.skip("matmul", "not here: NZ is a layout of NPUs")
        return
    if _OPERATORS not in child_env({}):  # the cast of torch_npu 2.10 would end this process
        work.tell.skip("matmul", f"not here: {_OPERATORS}, of CANN's set_env.sh, is not set, and names who casts to NZ")
        return
    from model.ops.npu import to_nz

    check_matmul(work.tell, work.device, *work.products, work.repeats, "NZ", to_nz)


def _encoder(work: Work) -> None:
    with TemporaryDirectory() as folder:
        ops, patches = load_ops(work.device, torch.bfloat16, checks=True), 1024 if work.small else PATCHES
        check_encoder(work.tell, write_random(Path(folder)), ops, specification(), patches, min(work.repeats, 5))


def _given(work: Work) -> None:
    assert work.checkpoint is not None
    check_given(work.tell, work.checkpoint, work.kind, work.tokens)


def _ranks(work: Work) -> None:
    n_sizes = 3 if work.small else len(RANK_SIZES)
    check_ranks(work.tell, work.device, work.kind, work.ranks, n_sizes, work.repeats)


def _stale(work: Work) -> None:
    check_stale(work.tell, load_ops(work.device, torch.bfloat16, checks=True))


def _models(work: Work) -> None:
    check_models(work.tell, work.kind, _MODELS[work.kind], work.tokens)


SECTIONS: Mapping[str, Callable[[Work], None]] = {
    "known": _known, "operators": _operators, "profile": _profile, "graphs": _graphs, "contexts": _contexts,
    "copies": _copies, "matmul": _matmul, "nz": _nz, "encoder": _encoder, "models": _models, "given": _given,
    "points": _points, "ranks": _ranks, "stale": _stale,
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
