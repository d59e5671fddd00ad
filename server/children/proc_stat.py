"""What the kernel counts of a process, whatever its threads and its interpreter's lock are at: /proc/PID/stat."""

from pathlib import Path


class ProcStat:
    """When a process last worked. Times are monotonic seconds."""

    def __init__(self, pid: int, now: float) -> None:
        self._pid = pid
        self._work = work_of(pid)
        self._moved = now

    def last_work(self, now: float) -> float:
        """When it was last seen to have worked, to the time between two looks. A stopped process adds nothing."""
        work = work_of(self._pid)
        if work != self._work:
            self._work, self._moved = work, now
        return self._moved


def work_of(pid: int) -> tuple[int, int] | None:
    """Pages that a process had to wait for, and its processor time in clock ticks; None where the kernel tells none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[9]), int(fields[11]) + int(fields[12])
