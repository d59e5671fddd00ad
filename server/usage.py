"""What a process takes of the machine, as the kernel counts it."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    open_files: int = 0

    def __add__(self, other: "ProcessUsage") -> "ProcessUsage":
        return ProcessUsage(
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            resident_bytes=self.resident_bytes + other.resident_bytes,
            open_files=self.open_files + other.open_files,
        )


def usage_of(pid: int) -> ProcessUsage:
    """Of one that has ended and is not reaped, its processor time alone; nothing where the kernel tells nothing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # proc(5); from its state on
        open_files = len(os.listdir(f"/proc/{pid}/fd")) if fields[0] != "Z" else 0
    except OSError:
        return ProcessUsage()
    spent = (int(fields[11]) + int(fields[12])) / _TICKS
    return ProcessUsage(cpu_seconds=spent, resident_bytes=int(fields[21]) * _PAGE, open_files=open_files)
