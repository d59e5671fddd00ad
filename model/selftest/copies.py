"""How fast bytes travel between the host and the device: from pinned memory, and from pageable."""

import functools

import torch

from model.selftest.operators import microseconds
from model.selftest.rows import CaseResult
from model.selftest.teller import Teller

SECTION = "copies"
_MIB = 1 << 20


def check_copies(tell: Teller, device: torch.device, sizes: tuple[int, ...], repeats: int) -> None:
    """sizes: MiB of a copy."""
    if device.type == "cpu":
        tell.skip("host and device", "not here: a CPU's tensors lie in the host's memory")
        return
    for mib in sizes:
        for pinned in (True, False):
            for up in (True, False):
                name = f"{'pinned' if pinned else 'pageable'}, {'to the device' if up else 'from the device'}"
                run = functools.partial(_copy, name, device, mib, pinned, up, repeats)
                tell.attempt(name, run, f"{mib} MiB")


def _copy(name: str, device: torch.device, mib: int, pinned: bool, up: bool, repeats: int) -> CaseResult:
    host = torch.randint(256, (mib * _MIB,), dtype=torch.uint8)
    host = host.pin_memory() if pinned else host
    there = torch.empty(mib * _MIB, dtype=torch.uint8, device=device)
    back = torch.empty_like(host, pin_memory=pinned)
    there.copy_(host)
    target, source = (there, host) if up else (back, there)
    each = microseconds(functools.partial(target.copy_, source, non_blocking=pinned), device, repeats)
    right = torch.equal(there.cpu() if up else back, host)
    return CaseResult(
        section=SECTION, name=name, case=f"{mib} MiB", verdict="pass" if right else "fail",
        microseconds=each, figures={"GB/s": host.nbytes / each / 1e3},
        note="" if right else "other bytes arrive",
    )  # fmt: skip
