"""uvicorn's reader of HTTP, which says whose bytes it could not read: a few lines a minute, however many come."""

import logging
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.logs.access import RECEIVED, address_of
from server.logs.bounded import Bound
from server.metrics import Metrics

log = logging.getLogger("pixelferry.http")

LINES, SECONDS = 10, 60.0


class Protocol(HttpToolsProtocol):
    """One connection. What no HTTP parser can read has no request and no id: it is a 400 that closes it."""

    def __init__(self, *args: Any, metrics: Metrics, bound: Bound, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._metrics = metrics
        self._bound = bound

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][RECEIVED] = time.monotonic()  # its task begins later, after whatever else is ready to run

    def send_400_response(self, msg: str) -> None:
        self._metrics.malformed()
        self._warn("not a valid HTTP request")
        super().send_400_response(msg)

    def _unsupported_upgrade_warning(self) -> None:
        self._warn("an upgrade to another protocol, which is ignored")

    def _warn(self, what: str) -> None:
        left_out = self._bound.take()
        if left_out is not None:
            others = f" ({left_out} such lines were left out before)" if left_out else ""
            log.warning("%s%s", what, others, extra={"fields": {"client": address_of(self.client)}})


class Protocols:
    """Makes the connections of one server, which share their counters and their bound."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._bound = Bound(LINES, SECONDS)

    def __call__(self, *args: Any, **kwargs: Any) -> Protocol:
        """As uvicorn makes one."""
        return Protocol(*args, metrics=self._metrics, bound=self._bound, **kwargs)
