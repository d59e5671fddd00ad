"""What the doctor looks at: files below a root, variables and rights of a process, packages, the driver's answer."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_MAY_OPEN_ALL = 1 << 1  # CAP_DAC_OVERRIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """Bytes of a file system."""

    total: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The first NPU that a process may see, as CANN's runtime names it; `trouble` instead where it cannot be opened."""

    trouble: str = ""
    count: int = 0
    soc: str = ""
    free: int = 0
    total: int = 0
    health: str = ""  # of every card that npu-smi lists: "OK", or which is not; empty where it says nothing
    others: tuple["Card", ...] = ()  # those behind it that a server of several ranks takes
    links: tuple[tuple[int, int, int], ...] = ()  # between two of them: how the runtime says that they are connected


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Whom the kernel takes this process for."""

    uid: int
    groups: frozenset[int]
    opens_all: bool

    def may_use(self, path: Path) -> bool:
        """Whether reading and writing of `path` is allowed."""
        found = path.stat()
        if self.opens_all:
            return True
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid in self.groups else 0
        return found.st_mode >> shift & 0o6 == 0o6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """What a process does for a moment to see whether it may. Each says why not, or None."""

    writing: Callable[[Path], str | None]  # a byte into a file of this directory
    listening: Callable[[str, int], str | None]  # at a host and a port


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine, or a tree of files that says it is one. Nothing here stays changed."""

    root: Path
    variables: Mapping[str, str]
    package: Callable[[str], str | None]  # the version of an installed distribution
    disk_space: Callable[[Path], DiskSpace]  # raises OSError
    card: Callable[[int], Card] | None  # the first of so many; None: nothing runs on this tree of files
    tries: Tries | None = None  # None: as of `card`

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """The text of a file; None where it cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def named(self, path: Path) -> str:
        """As the machine itself names it; a link may lead out of a tree of files."""
        root = next((root for root in (self.root, self.root.resolve()) if path.is_relative_to(root)), Path("/"))
        return f"/{path.relative_to(root)}"

    def rights(self) -> Rights:
        status = self.text("/proc/self/status") or ""
        return Rights(
            uid=int(_field(status, "Uid")[1]),
            groups=frozenset(int(gid) for gid in [_field(status, "Gid")[1], *_field(status, "Groups")]),
            opens_all=bool(int(_field(status, "CapEff")[0], 16) & _MAY_OPEN_ALL),
        )

    def processors(self) -> frozenset[int]:
        """On which this process may run."""
        return in_list(_field(self.text("/proc/self/status") or "", "Cpus_allowed_list")[0])

    def limits(self, name: str) -> tuple[int | None, int | None]:
        """The soft and the hard limit of this process as /proc/self/limits names it; None: unlimited."""
        found = re.search(rf"^{name} +(\S+) +(\S+)", self.text("/proc/self/limits") or "", re.MULTILINE)
        soft, hard = (int(text) if text.isdigit() else None for text in (found.groups() if found else ("", "")))
        return soft, hard


def in_list(text: str) -> frozenset[int]:
    """The numbers of a list of the kernel's, such as 0-3,8."""
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return frozenset(number for low, _, high in ranges for number in range(int(low), int(high or low) + 1))


def _field(status: str, name: str) -> list[str]:
    found = re.search(rf"^{name}:(.*)$", status, re.MULTILINE)
    return found[1].split() if found else ["0", "0"]
