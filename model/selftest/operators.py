"""Each operation on the device against its specification in float32 on the CPU, in every dtype that the device serves.

The specification is TorchOps: it gets the same inputs, rounded to the dtype and widened again. So what differs is the
device's own arithmetic. A difference is told as a share of the largest value that is expected in its row: of a token's
channels, or of one head's.
"""

import functools
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import torch
from torch import Tensor

from model.ops.base import Ops
from model.ops.load import load_ops
from model.selftest.attention_cases import attention_cases
from model.selftest.cases import Case, Inputs, elementwise_cases
from model.selftest.rows import CaseResult, Verdict
from model.selftest.teller import Teller

TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
DTYPES = {
    "cpu": (torch.float32, torch.bfloat16),
    "npu": (torch.bfloat16,),
    "cuda": (torch.float32, torch.bfloat16, torch.float16),
}
_SEED = 20


def specification() -> Ops:
    return load_ops(torch.device("cpu"), torch.float32)


def all_cases() -> list[Case]:
    return [*elementwise_cases(), *attention_cases()]


def check_operators(tell: Teller, all_ops: Iterable[Ops], reference: Ops, cases: Iterable[Case], repeats: int) -> None:
    """A row for each case and Ops. repeats: calls that are timed."""
    for ops in all_ops:
        dtype = str(ops.dtype).removeprefix("torch.")
        for case in cases:
            run = functools.partial(compare, tell.section, case, ops, reference, repeats)
            tell.attempt(case.op, run, case.name, dtype)


@torch.inference_mode()
def compare(section: str, case: Case, ops: Ops, reference: Ops, repeats: int) -> CaseResult:
    drawn = {
        name: x.to(ops.dtype) if x.is_floating_point() and name not in ("cos", "sin") else x
        for name, x in case.draw(torch.Generator().manual_seed(_SEED)).items()
    }
    expected = case.expected or case.bind(reference, {name: _widened(x) for name, x in drawn.items()})()
    inputs: Inputs = {name: x.to(ops.device, copy=True) for name, x in drawn.items()}
    run = case.bind(ops, inputs)
    found = [x.cpu() for x in run()]
    row = CaseResult(section=section, name=case.op, case=case.name, verdict="fail", tolerance=case.tolerance)
    row = judged(row, found, expected, ops.dtype)  # before further calls, which write into what was found
    return msgspec.structs.replace(row, microseconds=microseconds(run, ops.device, repeats))


def judged(row: CaseResult, found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype) -> CaseResult:
    """The row with a verdict, by its own tolerance or by that of the dtype."""
    error, note = difference(found, expected, dtype)
    tolerance = TOLERANCES[dtype] if row.tolerance is None else row.tolerance
    verdict: Verdict = "pass" if error is not None and error <= tolerance else "fail"
    return msgspec.structs.replace(
        row, dtype=str(dtype).removeprefix("torch."), verdict=verdict, error=error, tolerance=tolerance, note=note
    )


def difference(found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype) -> tuple[float | None, str]:
    """The largest one, and what is wrong besides numbers."""
    largest = 0.0
    for mine, theirs in zip(found, expected, strict=True):
        if mine.shape != theirs.shape or mine.dtype != dtype:
            return None, f"{list(mine.shape)} {mine.dtype} instead of {list(theirs.shape)} {dtype}"
        if not torch.isfinite(mine).all():
            return None, f"{int((~torch.isfinite(mine)).sum())} of {mine.numel()} values are not finite"
        wanted = theirs.float()
        scale = wanted.abs().amax(-1, keepdim=True).clamp(min=float(wanted.pow(2).mean().sqrt()))
        largest = max(largest, float(((mine.float() - wanted).abs() / scale).max()))
    return largest, ""


def microseconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Of one call where many are given to the device one behind the other, as a network does; after a first one."""
    synchronize = (lambda: None) if device.type == "cpu" else torch.get_device_module(device).synchronize
    run()
    synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize()
    return (time.perf_counter() - started) / repeats * 1e6


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.float32, copy=True) if x.is_floating_point() else x
