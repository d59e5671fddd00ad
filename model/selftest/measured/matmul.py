"""Products at the sizes of a published model, with weights as they are (ND) and in blocks of 16 (NZ)."""

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from model.selftest.operators import judged, microseconds
from model.selftest.rows import CaseResult
from model.selftest.teller import Teller

SIZES = ((3584, 4608), (3584, 37888), (18944, 3584), (3584, 152064))  # of 7B models: qkv, gate and up, down, head
ROWS = (1, 16, 64, 8192)
_CHECKED = 64  # rows and columns that the CPU computes as well
_MOST = 1 << 30  # numbers of a result: more belong to no step, which samples few rows

Cast = Callable[[Tensor], Tensor]


@torch.inference_mode()
def check_matmul(
    tell: Teller, device: torch.device, sizes: Sequence[tuple[int, int]], rows: Sequence[int], repeats: int,
    how: str = "ND", cast: Cast = lambda weight: weight,
) -> None:  # fmt: skip
    """A row for each size and number of rows. how: the layout that `cast` gives a weight [out, in]."""
    for n_in, n_out in sizes:
        for n in (n for n in rows if n * n_out < _MOST):
            case = f"{n:,} x {n_in:,} to {n_out:,}, {how}"
            run = functools.partial(_product, tell.section, device, n, n_in, n_out, case, repeats, cast)
            tell.attempt("matmul", run, case, "bfloat16")


def _product(
    section: str, device: torch.device, n: int, n_in: int, n_out: int, case: str, repeats: int, cast: Cast
) -> CaseResult:
    x = torch.empty(n, n_in, dtype=torch.bfloat16, device=device).normal_()
    weight = torch.empty(n_out, n_in, dtype=torch.bfloat16, device=device).normal_(std=n_in**-0.5)
    expected = F.linear(x[:_CHECKED].float().cpu(), weight[:_CHECKED].float().cpu())
    nbytes = weight.nbytes
    weight = cast(weight)
    run = functools.partial(F.linear, x, weight)
    found = [run()[:_CHECKED, :_CHECKED].cpu()]
    each = microseconds(run, device, repeats)
    figures = {"TFLOP/s": 2e-6 * n * n_in * n_out / each, "GB/s of weights": nbytes / each / 1e3}
    row = CaseResult(section=section, name="matmul", case=case, verdict="fail", microseconds=each, figures=figures)
    return judged(row, found, [expected], torch.bfloat16)
