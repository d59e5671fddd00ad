"""The largest pictures: attention of one long segment, and a tower's time and peak of memory."""

import functools
import math
import time
from pathlib import Path

import torch

from model.device import peak_bytes
from model.ops.base import Ops
from model.selftest.graphs import build_at
from model.selftest.operators import judged, microseconds
from model.selftest.rows import CaseResult
from model.selftest.teller import Teller

SECTION = "encoder"
PATCHES = 65_536  # 12.8 million pixels
_HEADS, _DIM = 16, 80
_CHECKED = 16  # rows that the CPU computes as well


@torch.inference_mode()
def check_encoder(tell: Teller, checkpoint: Path, ops: Ops, reference: Ops, patches: int, repeats: int) -> None:
    """patches: of one picture, a square of an even number."""
    case = f"{patches:,} patches"
    attention = functools.partial(_attention, ops, reference, patches, case, repeats)
    tell.attempt("segment_attention", attention, case, "bfloat16")
    tell.attempt("tower", functools.partial(_tower, checkpoint, ops, patches, case), case, "bfloat16")


def _attention(ops: Ops, reference: Ops, patches: int, case: str, repeats: int) -> CaseResult:
    """Some queries look for keys from one end to the other; the CPU computes theirs alone."""
    generator = torch.Generator().manual_seed(6)
    query, key, value = (torch.randn(patches, _HEADS, _DIM, generator=generator).bfloat16() for _ in range(3))
    chosen = torch.linspace(0, patches - 1, _CHECKED).long()
    query[chosen] = 2 * key[chosen.flip(0)]
    expected = reference.cross_attention(query[chosen].float(), key.float(), value.float())
    query, key, value = (x.to(ops.device) for x in (query, key, value))

    def run() -> torch.Tensor:
        return ops.segment_attention(query, key, value, [patches])

    found, each = [run().cpu()[chosen]], microseconds(run, ops.device, repeats)
    row = CaseResult(section=SECTION, name="segment_attention", case=case, verdict="fail", microseconds=each)
    return judged(row, found, [expected], torch.bfloat16)


def _tower(checkpoint: Path, ops: Ops, patches: int, case: str) -> CaseResult:
    model, side = build_at(checkpoint, ops), math.isqrt(patches)
    grid = (1, side, side)
    encoder = model.encoders["image"]
    pixels = torch.randint(256, encoder.input_shape(grid), generator=torch.Generator().manual_seed(8))
    pixels = pixels.to(ops.device, encoder.dtype)
    taken: list[float] = []

    def encode() -> None:
        started = time.perf_counter()
        [found] = model.encode("image", [pixels], [grid])
        finite.append(bool(torch.isfinite(found).all().cpu()))  # it is awaited here
        taken.append(time.perf_counter() - started)

    finite: list[bool] = []
    encode()
    figures = {} if ops.device.type == "cpu" else {"GiB at the peak": peak_bytes(ops.device, encode) / 2**30}
    return CaseResult(
        section=SECTION, name="tower", case=case, dtype="bfloat16", verdict="pass" if all(finite) else "fail",
        microseconds=taken[-1] * 1e6, figures=figures, note="" if all(finite) else "values are not finite",
    )  # fmt: skip
