"""Whether a child that loads still lives and gets further, or hangs."""

from pathlib import Path

from shm import Loading


class LoadWatch:
    """One incarnation until it is ready. Times are monotonic seconds.

    Its pulse begins with its own first lines. Before that, and while one import holds the interpreter for long (a
    library of a gigabyte from a slow disk), the kernel's books tell whether it works: a stopped process adds nothing.
    """

    def __init__(self, pid: int, now: float, *, pulse_seconds: float, load_seconds: float) -> None:
        """pulse_seconds: silence that counts as hanging; load_seconds: the same of a pulse that tells no progress."""
        self._pid = pid
        self._pulse_seconds = pulse_seconds
        self._load_seconds = load_seconds
        self._alive = self._further = now
        self._steps = 0
        self._work = work_of(pid)

    def heard(self, message: Loading, now: float) -> None:
        self._alive = now
        if message.steps > self._steps:
            self._steps, self._further = message.steps, now

    def excuse(self, seconds: float) -> None:
        """The watcher itself was stopped for so long: what was said meanwhile is unread."""
        self._alive += seconds
        self._further += seconds

    def hang_reason(self, now: float) -> str | None:
        """Why it counts as hung, or None."""
        work = work_of(self._pid)
        if work != self._work:
            self._work, self._alive = work, now
        if now - self._alive > self._pulse_seconds:
            return f"silent for {now - self._alive:.1f} s while it loads"
        if now - self._further > self._load_seconds:
            return f"no further for {now - self._further:.0f} s while it loads"
        return None


def work_of(pid: int) -> tuple[int, int] | None:
    """Pages that a process had to wait for, and its processor time in clock ticks; None where the kernel tells none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[9]), int(fields[11]) + int(fields[12])
