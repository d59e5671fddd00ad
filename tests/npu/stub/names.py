"""Which libraries and functions the shared objects of a package want from a machine that does not have them."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = re.compile(r"(?:lib(?:c|m|dl|rt|util|pthread|gcc_s|stdc\+\+)|ld-linux-\S+?)\.so")  # what every Linux has


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    libraries: frozenset[str]  # their names as the loader knows them
    functions: frozenset[str]


def wanted(files: Iterable[Path], shipped: Iterable[Path]) -> Wanted:
    """What `files` need and neither `shipped` nor the system has.

    Names that `shipped` defines must be left out: a stub of `dgemm_` before torch's own makes its products garbage.
    """
    users, own = list(files), list(shipped)
    needed = {name for path in users for name in _libraries(path)}
    names = {name for path in users for name in _undefined(path)} - {name for path in own for name in _defined(path)}
    at_hand = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None)  # with libc and libm; the interpreter itself
    return Wanted(
        libraries=frozenset(needed - {path.name for path in own}),
        functions=frozenset(name for name in names if not any(hasattr(place, name) for place in at_hand)),
    )


def mentioned(files: Iterable[Path], pattern: bytes) -> frozenset[str]:
    """Strings of the files that match as a whole: names of functions that are looked up when they are called."""
    found = re.compile(rb"(?<=\0)(?:" + pattern + rb")(?=\0)")
    return frozenset(name.decode() for path in files for name in found.findall(path.read_bytes()))


def tool(name: str) -> str:
    """The path of a program. Raises FileNotFoundError."""
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; the stub of the driver is made with gcc and binutils")
    return found


def _libraries(path: Path) -> list[str]:
    found = re.findall(r"\(NEEDED\).*\[(.+)\]", _output("readelf", "-d", str(path)))
    return [name for name in found if not _SYSTEM.match(name)]


def _undefined(path: Path) -> Iterable[str]:
    for line in _output("nm", "-D", "--undefined-only", str(path)).splitlines():
        kind, symbol = line.split()[-2:]
        if kind == "U":  # the loader goes on without a weak one
            yield symbol.partition("@")[0]


def _defined(path: Path) -> Iterable[str]:
    for line in _output("nm", "-D", "--defined-only", str(path)).splitlines():
        yield line.split()[-1].partition("@")[0]


def _output(program: str, *words: str) -> str:
    return subprocess.run([tool(program), *words], check=True, capture_output=True, text=True).stdout
