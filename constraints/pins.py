"""The files of constraints: what each pins for a Python on aarch64, and what pyproject.toml asks for beside it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYTHONS = ("3.10", "3.11", "3.12")
Pins = dict[str, tuple[str, str]]  # by normalized name: the name and the version as they are written


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintSet:
    """A file of constraints, and which extras of pyproject.toml are installed by it."""

    path: str
    needed: tuple[str, ...]  # the server does not run without them
    optional: tuple[str, ...]


SETS = (
    ConstraintSet(path="constraints/ascend.txt", needed=("npu",), optional=("hub", "modelscope", "otel")),
    ConstraintSet(
        path="constraints/cpu.txt", needed=(), optional=("hub", "modelscope", "otel", "ray", "train", "test")
    ),
)


def environment(python: str) -> dict[str, str]:
    """What markers see on an aarch64 Linux with a CPython of this series; nothing of the machine that asks."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "aarch64",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
        "extra": "",
    }


def pins(text: str, python: str) -> Pins:
    """The constraints that hold for a Python on aarch64.

    Raises ValueError for a line that pins no version, and for two lines that pin one project.
    """
    found: Pins = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        pin = Requirement(line)
        specifiers = list(pin.specifier)
        if len(specifiers) != 1 or specifiers[0].operator != "==":
            raise ValueError(f"{line!r} pins no version")
        if pin.marker is None or pin.marker.evaluate(environment(python)):
            key = canonicalize_name(pin.name)
            if key in found:
                raise ValueError(f"{pin.name} is pinned twice for Python {python}")
            found[key] = (pin.name, specifiers[0].version)
    return found


def roots(repo: Path, extras: Sequence[str], *, base: bool) -> list[Requirement]:
    """What pyproject.toml asks for in these extras and, with `base`, in the dependencies of the server itself."""
    project = tomllib.loads((repo / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"]) if base else []
    lines += [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines]
