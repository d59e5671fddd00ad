"""How fast bytes travel between the host and the device: from pinned memory, and from pageable."""

import functools
import time

import torch

from model.selftest.operators import microseconds
from model.selftest.rows import CaseResult
from model.selftest.teller import Teller
from model.staging.streams import open_streams

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
    for inside in (False, True):
        name = "pinned, returns early"
        case = f"{sizes[-1]} MiB{' from inside of a buffer' if inside else ''}"
        tell.attempt(name, functools.partial(_returns, name, case, device, sizes[-1], inside), case)


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


def _returns(name: str, case: str, device: torch.device, mib: int, inside: bool) -> CaseResult:
    """Whether the host goes on while a copy from pinned memory runs. inside: it begins behind the buffer's start."""
    skipped = _MIB // 2 if inside else 0
    host = torch.randint(256, (mib * _MIB + skipped,), dtype=torch.uint8).pin_memory()[skipped:]
    there, streams = torch.empty(mib * _MIB, dtype=torch.uint8, device=device), open_streams(device)
    there.copy_(host)
    streams.record().wait()
    there.zero_()
    streams.record().wait()
    started = time.perf_counter()
    there.copy_(host, non_blocking=True)
    returned = time.perf_counter()
    copied = streams.record()
    early = not copied.done()
    copied.wait()
    ended = time.perf_counter()
    right = torch.equal(there.cpu(), host)
    return CaseResult(
        section=SECTION, name=name, case=case, verdict="told" if right else "fail",
        microseconds=(returned - started) * 1e6, figures={"us until it is done": (ended - started) * 1e6},
        note=("early" if early else "not early: the host waits") if right else "other bytes arrive",
    )  # fmt: skip
