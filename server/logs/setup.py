"""What a process of ours logs to stderr: the same lines from the server, its workers and its engine."""

import asyncio
import logging
import os
import sys
from typing import TextIO

from configs.logs import LogConfig
from server.logs.formats import WHOLE, JsonFormat, TextFormat

ACCESS = "pixelferry.access"
SILENCED = ("uvicorn", "python_multipart")
OURS = ("pixelferry", "server", "model", "tokenization", "shm")
log = logging.getLogger("pixelferry")


class StandardError(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is then."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # logging's is an attribute
        return sys.stderr


def set_up(config: LogConfig, process: str) -> None:
    """Log as `config` says. `process` is this one's part: server, worker or engine.

    Libraries are heard from warnings on, whatever the level: what they say for their own debugging may quote media.
    """
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, StandardError)]:
        root.removeHandler(handler)
    handler = StandardError()
    handler.setFormatter(JsonFormat(process) if config.format == "json" else TextFormat(process))
    root.addHandler(handler)
    level = config.level.upper()
    for name in OURS:
        logging.getLogger(name).setLevel(level)
    root.setLevel(logging.ERROR if config.level == "error" else logging.WARNING)
    # Without access lines, those of errors remain.
    logging.getLogger(ACCESS).setLevel(logging.NOTSET if config.access else max(logging.WARNING, log.level))
    # What they warn of names no client and comes as often as a client likes: bad_requests.py or the answer says it.
    for name in SILENCED:
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(not_cut_off)
    logging.captureWarnings(True)


def not_cut_off(record: logging.LogRecord) -> bool:
    """False for the trace of a request that the server's end cuts off: its access line says that."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def tell(text: str) -> None:
    """Print for whoever started the server. A stdout that is closed or full costs a line of the log, and nothing else.

    What is printed after that is left out, also what Python itself would write at its end.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        log.warning("stdout takes nothing any more (%s): what is printed there is left out", error.strerror)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def complain(error: object, config: LogConfig) -> None:
    """Say why this process cannot start or go on: a line that begins with "error: ", or a JSON record."""
    if config.format == "json":
        log.critical("%s", error)
    else:
        print(f"error: {error}", file=sys.stderr, flush=True)


def complain_of_defect(what: str) -> None:
    """Log the exception that is being handled, messages included: this process ends of it, and of no one request."""
    log.critical(what, exc_info=True, extra=WHOLE)
