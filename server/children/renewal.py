"""How a worker that keeps too much memory is replaced: when others serve, when it has no job, and for that reason."""

from collections.abc import Callable


class Renewal:
    """Of one place for workers, over all its incarnations."""

    def __init__(self, others_serve: Callable[[], bool]) -> None:
        self._others_serve = others_serve
        self._kept: int | None = None
        self.begun = False  # from here on it gets no further job
        self.ended = False  # it was ended for that, and no next one has been ready since

    def started(self) -> None:
        """A new incarnation, which is not ready yet."""
        self._kept, self.begun = None, False

    def ready(self) -> None:
        self.ended = False

    def wanted(self, nbytes: int) -> None:
        """This one keeps so many bytes of earlier jobs. It may say so again. It gets no further job if others serve."""
        self._kept = nbytes
        self.begun = self.begun or self._others_serve()

    def due(self, *, at_rest: bool) -> str | None:
        """Why it is to be ended now; None while it need not be, or has a job, or another one is about to be replaced.

        To be asked again and again. One that is alone is replaced all the same: chats wait for the moment.
        """
        if self._kept is None:
            return None
        self.begun = self.begun or self._others_serve()
        self.ended = self.begun and at_rest
        return f"it keeps {self._kept >> 20} MiB of earlier jobs" if self.ended else None
