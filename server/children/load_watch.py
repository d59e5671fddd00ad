"""Whether a child that loads still lives and gets further, or hangs."""

from server.children.kernel_books import KernelBooks
from shm import Loading


class LoadWatch:
    """One incarnation until it is ready. Times are monotonic seconds.

    Its pulse begins with its own first lines. Before that, and while one import holds the interpreter for long (a
    library of a gigabyte from a slow disk), the kernel's books tell whether it works.
    """

    def __init__(self, books: KernelBooks, now: float, *, pulse_seconds: float, load_seconds: float) -> None:
        """pulse_seconds: silence that counts as hanging; load_seconds: the same of a pulse that tells no progress."""
        self._books = books
        self._pulse_seconds = pulse_seconds
        self._load_seconds = load_seconds
        self._heard = self._further = now
        self._steps = 0

    def heard(self, message: Loading, now: float) -> None:
        self._heard = now
        if message.steps > self._steps:
            self._steps, self._further = message.steps, now

    def excuse(self, seconds: float) -> None:
        """The watcher itself was stopped for so long: what was said meanwhile is unread."""
        self._heard += seconds
        self._further += seconds

    def hang_reason(self, now: float) -> str | None:
        """Why it counts as hung, or None."""
        alive = max(self._heard, self._books.last_work(now))
        if now - alive > self._pulse_seconds:
            return f"silent for {now - alive:.1f} s while it loads"
        if now - self._further > self._load_seconds:
            return f"no further for {now - self._further:.0f} s while it loads"
        return None
