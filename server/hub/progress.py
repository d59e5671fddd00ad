"""How far a download is: bars on a terminal, log lines elsewhere."""

import io
import logging
import time
from typing import Any

from tqdm.auto import tqdm

from server.http.health import DownloadProgress
from server.report import size

log = logging.getLogger("pixelferry")

LOG_SECONDS = 10.0


def counted(bar: type[Any], progress: DownloadProgress) -> type[Any]:
    """The bars of that class, whose bytes count in `progress`, too: with those that an earlier start left."""

    class CountedBar(bar):  # type: ignore[misc]  # its base is a value
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            progress.add(done=int(self.n))

        def update(self, n: float | None = 1) -> Any:
            progress.add(done=int(n or 0))
            return super().update(n)

    return CountedBar


class LoggedBar(tqdm):  # type: ignore[misc]  # tqdm has no types
    """A bar of tqdm, as the clients of hubs ask for one, that logs a line instead of drawing.

    A file that takes less than LOG_SECONDS has no line.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.update(file=io.StringIO(), mininterval=LOG_SECONDS, miniters=1, delay=0)
        super().__init__(*args, **kwargs)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """tqdm calls this at most every `mininterval`, and at both ends."""
        if msg is None and self.n and time.time() - self.start_t >= LOG_SECONDS:
            whole = f" of {size(int(self.total))}" if self.total else ""
            log.info("downloading %s: %s%s", self.desc.removesuffix(": ").rpartition("/")[2], size(int(self.n)), whole)
        return True
