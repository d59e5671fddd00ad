"""What the kernel counts of another process's work: one that owes an answer and does nothing for long hangs."""

from pathlib import Path

LOOK_SECONDS = 0.5  # between two looks
LOOKS = 10  # in a row at which nothing was seen of it


def work_of(pid: int) -> tuple[int, int] | None:
    """Pages that a process had to wait for, and its processor time in clock ticks; None where the kernel tells none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[9]), int(fields[11]) + int(fields[12])


class Stillness:
    """Looks at one process, for as long as it owes an answer.

    Looks are counted and not seconds: of a time in which who looks was itself stopped there is one. A process that is
    ready to run, or waits for a disk, does not hang.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._n_looks = 0
        self._next = 0.0  # when it is looked at again (monotonic)
        self._work: tuple[int, int] | None = None

    def reset(self) -> None:
        """It has answered, or owes nothing."""
        self._n_looks = 0

    def look(self, now: float) -> bool:
        """Whether it hangs; said once."""
        if now < self._next:
            return False
        self._next = now + LOOK_SECONDS
        work = work_of(self._pid)
        works = work != self._work or _state_of(self._pid) in "RD"
        self._work = work
        self._n_looks = 0 if works else self._n_looks + 1
        if self._n_looks < LOOKS:
            return False
        self._n_looks = 0
        return True


def _state_of(pid: int) -> str:
    """As proc(5) has it; "" of one that is gone, of which others tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
