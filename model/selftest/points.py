"""Single questions that documentation leaves open about a device: how it rounds, what it refuses, how long it takes."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from model.device import first_line
from model.ops.base import Ops
from model.selftest.attention_cases import BLOCK
from model.selftest.operators import TOLERANCES, difference, microseconds
from model.selftest.rows import CaseResult
from model.selftest.teller import Teller
from model.staging.streams import is_broken

SECTION = "points"
_VOCABULARY = 152_064  # logits of a row, as of a published model
_ROWS = 16
_TOP = 64  # what topk takes of a row
_LARGE = 262_144  # the last position that is served
_SHARED = "the tables name 24 blocks of 10"
_ANGLE_ERROR = 1e-3  # of a cosine, which is rounded to a half-precision number afterwards


@torch.inference_mode()
def check_points(tell: Teller, ops: Ops, unbound: Ops, reference: Ops, repeats: int) -> None:
    """Of one dtype. unbound: Ops whose tables may name more blocks than the cache has."""
    dtype = str(ops.dtype).removeprefix("torch.")
    tell.attempt("add_rms_norm", lambda: _sum_rounding(ops), "how it rounds the sum", dtype)
    tell.attempt("attention", lambda: _probabilities(ops), "how it keeps probabilities", dtype)
    tell.attempt("torch's gelu", lambda: _own_gelu(ops), "exact or by tanh", dtype)
    # Last: whoever breaks the documented rule may break the device.
    tell.attempt("shared blocks", lambda: _shared_blocks(unbound, reference, repeats), _SHARED, dtype)


@torch.inference_mode()
def check_float32(tell: Teller, device: torch.device, repeats: int) -> None:
    """What is computed in float32 whatever the dtype: angles, and the sampler's operators over a vocabulary."""
    for name in ("cos", "sin"):
        tell.attempt(name, functools.partial(_angles, name, device), f"angles up to {_LARGE}", "float32")
    tell.attempt("pow", functools.partial(_powers, device), "frequencies of 1e6", "float32")
    for name, call in _OF_A_VOCABULARY.items():
        run = functools.partial(_of_vocabulary, name, call, device, repeats)
        tell.attempt(name, run, f"{_ROWS} x {_VOCABULARY}", "float32")


def _row(name: str, ops_dtype: torch.dtype, case: str, note: str) -> CaseResult:
    dtype = str(ops_dtype).removeprefix("torch.")
    return CaseResult(section=SECTION, name=name, case=case, dtype=dtype, verdict="told", note=note)


def _shared_blocks(ops: Ops, reference: Ops, repeats: int) -> CaseResult:
    """Eight sequences share two blocks and have one each: their tables name 24 blocks of a cache of 10."""
    n, heads, kv_heads, dim = 8, 4, 4, 128  # the rule is documented for as many key heads as query heads
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(10 * BLOCK, 2, kv_heads, dim, generator=generator).to(ops.dtype)
    query = torch.randn(n, heads, dim, generator=generator).to(ops.dtype)
    table = torch.tensor([[0, 1, 2 + i] for i in range(n)], dtype=torch.int32)

    def bound(ops: Ops) -> Callable[[], list[Tensor]]:
        def there(x: Tensor) -> Tensor:
            return x.to(ops.device, ops.dtype if x.is_floating_point() else x.dtype)

        caches = ops.kv_cache(10, BLOCK, kv_heads, dim)
        ops.write_kv(there(drawn[:, 0].contiguous()), there(drawn[:, 1].contiguous()), *caches,
                     torch.arange(10 * BLOCK, device=ops.device))  # fmt: skip
        attend = ops.plan_attention([1] * n, [3 * BLOCK] * n, there(table), BLOCK)
        mine = there(query)
        return lambda: [attend(mine, *caches)]

    run = bound(ops)
    try:
        error, note = difference([x.cpu() for x in run()], bound(reference)(), ops.dtype)
    except (RuntimeError, ValueError) as refused:
        if isinstance(refused, RuntimeError) and is_broken(refused):
            raise
        return _row("shared blocks", ops.dtype, _SHARED, f"refused: {first_line(refused)}")
    tolerance = TOLERANCES[ops.dtype]
    right = "right" if error is not None and error <= tolerance else "runs, but its numbers are wrong"
    return CaseResult(
        section=SECTION, name="shared blocks", case=_SHARED, verdict="told", error=error, tolerance=tolerance,
        dtype=str(ops.dtype).removeprefix("torch."), note=note or right,
        microseconds=microseconds(run, ops.device, repeats),
    )  # fmt: skip


def _sum_rounding(ops: Ops) -> CaseResult:
    generator = torch.Generator().manual_seed(4)
    x, residual = (torch.randn(16, 512, generator=generator).to(ops.dtype) for _ in range(2))
    weight = torch.ones(512, dtype=ops.dtype)
    exact = x.double() + residual.double()
    mine = [part.to(ops.device, copy=True) for part in (x, residual, weight)]
    found, _ = ops.add_rms_norm(mine[0], mine[1], mine[2], 1e-6)
    distances = {
        name: _distance(found.cpu().double(), total / total.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt())
        for name, total in (("as it is", exact), ("rounded first", exact.to(ops.dtype).double()))
    }
    nearer = min(distances, key=lambda name: distances[name])
    far = ", ".join(f"{name} {value:.2g}" for name, value in distances.items())
    return _row(
        "add_rms_norm", ops.dtype, "how it rounds the sum", f"the sum is normed {nearer} (mean distance: {far})"
    )


def _distance(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().mean())


def _probabilities(ops: Ops) -> CaseResult:
    """Two keys whose values cancel once the second's probability is rounded to the dtype."""
    dim, gap = 64, 0.703125  # a difference of scores that both dtypes hold exactly
    share = torch.tensor(-gap).exp()
    query, key, value = (torch.zeros(2, 1, dim) for _ in range(3))
    query[:, 0, 0] = dim**0.5
    key[0, 0, 0] = gap
    value[0], value[1] = -share.to(ops.dtype).float(), 1.0
    expected = float((share - share.to(ops.dtype).float()) / (1 + share))
    query, key, value = (x.to(ops.device, ops.dtype) for x in (query, key, value))
    found = float(ops.segment_attention(query, key, value, [2])[0, 0, 0].cpu())
    if expected == 0 or abs(found - expected) < abs(expected) / 4:
        kept = "in float32"
    elif abs(found) < abs(expected) / 4:
        kept = f"rounded to {str(ops.dtype).removeprefix('torch.')}"
    else:
        kept = "otherwise"
    return _row("attention", ops.dtype, "how it keeps probabilities",
                f"{kept}: {found:.3g} where float32 gives {expected:.3g} and rounding 0")  # fmt: skip


def _own_gelu(ops: Ops) -> CaseResult:
    x = torch.linspace(-3, 3, 4096).to(ops.dtype)
    found = F.gelu(x.to(ops.device)).cpu().double()
    distances = {
        name: _distance(found, F.gelu(x.double(), approximate=how))
        for name, how in (("exact", "none"), ("by tanh", "tanh"))
    }
    return _row("torch's gelu", ops.dtype, "exact or by tanh", min(distances, key=lambda name: distances[name]))


def _angles(name: str, device: torch.device) -> CaseResult:
    angles = torch.linspace(0, _LARGE, 100_001, dtype=torch.float32)
    found = getattr(angles.to(device), name)().cpu().double()
    error = float((found - getattr(angles.double(), name)()).abs().max())
    return CaseResult(
        section=SECTION, name=name, case=f"angles up to {_LARGE}", dtype="float32", error=error,
        tolerance=_ANGLE_ERROR, verdict="pass" if error <= _ANGLE_ERROR else "fail",
    )  # fmt: skip


def _powers(device: torch.device) -> CaseResult:
    exponents = torch.arange(0, 128, 2, dtype=torch.float32) / 128
    found = (1.0 / 1e6 ** exponents.to(device)).cpu().double()
    wanted = 1.0 / 1e6 ** exponents.double()
    error = float(((found - wanted) / wanted).abs().max())
    return CaseResult(
        section=SECTION, name="pow", case="frequencies of 1e6", dtype="float32", error=error, verdict="told",
        note="frequencies are made on the CPU",
    )  # fmt: skip


def _nucleus(x: Tensor) -> Tensor:
    return torch.searchsorted(x.abs().cumsum(-1), torch.full((x.shape[0], 1), 1000.0, device=x.device))


def _put(x: Tensor) -> Tensor:
    rows = torch.arange(0, x.shape[0], 2, device=x.device)
    return x.clone().index_copy_(0, rows, x[rows] + 1)


def _fill(x: Tensor) -> Tensor:
    return x.clone().index_fill_(-1, torch.arange(8, device=x.device), -1.0)


_OF_A_VOCABULARY: dict[str, Callable[[Tensor], Tensor]] = {
    "sort": lambda x: x.sort(-1, descending=True).values,
    "cumsum": lambda x: x.softmax(-1).cumsum(-1),
    "searchsorted": _nucleus,
    "index_copy_": _put,
    "argmax": lambda x: x.argmax(-1),
    "max": lambda x: x.amax(-1),
    "topk": lambda x: x.topk(_TOP, -1).values,
    "index_fill_": _fill,
    "log_softmax": lambda x: x.log_softmax(-1),
}


def _of_vocabulary(name: str, call: Callable[[Tensor], Tensor], device: torch.device, repeats: int) -> CaseResult:
    """`searchsorted` is over sums, which may differ in their last places: by one column at most."""
    x = torch.randn(_ROWS, _VOCABULARY, generator=torch.Generator().manual_seed(5)) * 3
    there = x.to(device)
    found, wanted = call(there).cpu(), call(x)
    if name == "searchsorted":
        error, tolerance = float((found - wanted).abs().max()), 1.0
    elif found.is_floating_point():
        error, tolerance = float(((found - wanted).abs() / wanted.abs().amax()).max()), 2e-5
    else:
        error, tolerance = float((found != wanted).sum()), 0.0
    return CaseResult(
        section=SECTION, name=name, case=f"{_ROWS} x {_VOCABULARY}", dtype="float32", error=error,
        tolerance=tolerance, verdict="pass" if error <= tolerance else "fail",
        microseconds=microseconds(lambda: call(there), device, repeats),
    )  # fmt: skip
