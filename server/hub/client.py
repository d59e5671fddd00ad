"""What is asked of a hub's client, and what a user can do when it fails."""

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from configs.settings import install_command

FULL = (errno.ENOSPC, errno.EDQUOT)


class HubError(Exception):
    """A model that cannot be had from its hub: one sentence with the remedy."""


class HubClient(Protocol):
    """One model at one revision. Every call raises HubError."""

    where: str  # for people: the hub's address

    def fetch(self, names: Sequence[str]) -> Path:
        """Have these files in the client's cache; the directory that holds them. What is there is not fetched again."""
        ...

    def sizes(self) -> Mapping[str, int] | None:
        """Bytes of every file of the repository, by its path there; None where the client must not ask the hub."""
        ...

    @property
    def revision(self) -> str:
        """The exact revision that was fetched, as far as the hub tells it."""
        ...


def not_installed(package: str, extra: str) -> HubError:
    """What to type where the optional client of a hub is missing."""
    return HubError(
        f"--model by its name on a hub needs {package}, which is not installed: run `{install_command(extra)}`, or "
        "give a directory"
    )


def told(error: OSError, model: str, cache: str) -> HubError:
    """An error of the disk, or of a connection that broke. `cache`: the variable that moves the client's cache."""
    if error.errno in FULL:
        return HubError(f"{model}: the disk is full: free some, or name another place in {cache}, and start again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        place = f" under {error.filename}" if error.filename else ""
        return HubError(f"{model}: may not write{place}: name a place of yours in {cache}")
    return HubError(
        f"{model}: the download broke off ({one_line(error)}): start again, it goes on with what is missing"
    )


def one_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
