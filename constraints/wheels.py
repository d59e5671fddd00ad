"""Whether every pinned package has a wheel for aarch64: asks the index, and writes what it says (`make wheels`)."""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name
from packaging.version import Version

from constraints import table
from constraints.index import Index, IndexFailure, Wheel, configured
from constraints.pins import PYTHONS, SETS, ConstraintSet, Pins, environment, pins, roots

REPO = Path(__file__).resolve().parent.parent
RESULT = "constraints/wheels-aarch64.txt"
# torch and torch_npu ask for glibc 2.28; a wheel that asks for a newer one would narrow where the server runs.
PLATFORMS = (*(f"manylinux_2_{minor}_aarch64" for minor in range(28, 16, -1)), "manylinux2014_aarch64")

Key = tuple[str, str]  # the path of a file of constraints, and a Python


def accepted(python: str) -> list[Tag]:
    """Tags of the wheels that pip takes on aarch64, the best first."""
    major, minor = (int(part) for part in python.split("."))
    interpreter = f"cp{major}{minor}"
    own = cpython_tags((major, minor), abis=[interpreter], platforms=PLATFORMS)
    return [*own, *compatible_tags((major, minor), interpreter=interpreter, platforms=PLATFORMS)]


def best(wheels: Iterable[Wheel], version: str, python: str) -> Wheel | None:
    """The wheel of a version that pip takes on aarch64; None where it has none."""
    rank = {tag: place for place, tag in reversed(list(enumerate(accepted(python))))}
    fitting = [
        wheel
        for wheel in wheels
        if wheel.version == Version(version)
        and not wheel.tags.isdisjoint(rank)
        and SpecifierSet(wheel.requires_python).contains(f"{python}.0")
    ]
    if not fitting:
        return None
    return max(fitting, key=lambda wheel: (-min(rank[tag] for tag in wheel.tags if tag in rank), wheel.build))


def platform(wheel: Wheel) -> str:
    """The oldest platform that a wheel takes, as it stands in the result."""
    platforms = {tag.platform for tag in wheel.tags}
    if "any" in platforms:
        return "any"
    oldest = next(name for name in reversed(PLATFORMS) if name in platforms)
    return oldest.removesuffix("_aarch64").replace("manylinux2014", "manylinux_2_17")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What one file of constraints brings to one Python. Every mapping is by normalized name."""

    python: str
    pinned: Pins
    wheels: Mapping[str, Wheel | None]
    requires: Mapping[str, Sequence[Requirement]]

    def reached(self, asked: Iterable[Requirement], *, without_wheel: bool) -> tuple[set[str], list[str]]:
        """The names of all that these requirements bring along, and what is wrong with it.

        `without_wheel`: whether a package may have none.
        """
        found: set[tuple[str, str]] = set()
        wrong: list[str] = []
        waiting = [("pyproject.toml", "", wanted) for wanted in asked]
        while waiting:
            parent, extra, wanted = waiting.pop()
            if wanted.marker and not wanted.marker.evaluate({**environment(self.python), "extra": extra}):
                continue
            name = canonicalize_name(wanted.name)
            if complaint := self._complaint(name, wanted, without_wheel):
                wrong.append(f"{parent} asks for {name}{wanted.specifier}: {complaint}")
            fresh = {(name, part) for part in ("", *wanted.extras)} - found
            found |= fresh
            waiting += [(name, part, deeper) for _, part in fresh for deeper in self.requires.get(name, ())]
        return {name for name, _ in found}, wrong

    def _complaint(self, name: str, wanted: Requirement, without_wheel: bool) -> str | None:
        if name not in self.pinned:
            return "it is not pinned"
        version = self.pinned[name][1]
        if not wanted.specifier.contains(version, prereleases=True):
            return f"{version} is pinned"
        if self.wheels[name] is None and not without_wheel:
            return f"{version} has no wheel for aarch64"
        return None


def evaluate(index: Index, pinned: Mapping[Key, Pins]) -> dict[Key, Installation]:
    """Every installation; the index is asked once for each project and each wheel. Raises IndexFailure."""
    with ThreadPoolExecutor(8) as threads:
        projects = sorted({name for names in pinned.values() for name in names})
        pages = dict(zip(projects, threads.map(index.wheels, projects), strict=True))
        chosen = {
            (path, python): {name: best(pages[name], version, python) for name, (_, version) in names.items()}
            for (path, python), names in pinned.items()
        }
        files = list({wheel for wheels in chosen.values() for wheel in wheels.values() if wheel})
        required = dict(zip(files, threads.map(index.requirements, files), strict=True))
    return {
        key: Installation(
            python=key[1],
            pinned=pinned[key],
            wheels=wheels,
            requires={name: required[wheel] for name, wheel in wheels.items() if wheel},
        )
        for key, wheels in chosen.items()
    }


def examine(
    repo: Path, chosen: ConstraintSet, installations: Iterable[Installation]
) -> tuple[list[table.Row], list[str]]:
    """One row for each pin of a file, and what is wrong with the file."""
    needed, optional = roots(repo, chosen.needed, base=True), roots(repo, chosen.optional, base=False)
    rows: dict[tuple[str, str], table.Row] = {}
    wrong: dict[str, list[str]] = {}
    for installation in installations:
        server, failures = installation.reached(needed, without_wheel=False)
        others, more = installation.reached(optional, without_wheel=True)
        for failure in dict.fromkeys(failures + more):
            wrong.setdefault(failure, []).append(installation.python)
        for name, pin in installation.pinned.items():
            row = rows.setdefault(pin, table.Row(name=pin[0], version=pin[1]))
            row.by = "server" if name in server else row.by or ("extra" if name in others else "")
            wheel = installation.wheels[name]
            asked = name in server | others
            row.cells[installation.python] = table.UNUSED if not asked else platform(wheel) if wheel else table.NONE
    offences = [f"{chosen.path}: {failure} (Python {', '.join(pythons)})" for failure, pythons in wrong.items()]
    offences += [f"{chosen.path}: nothing asks for {row.name}=={row.version}" for row in rows.values() if not row.by]
    return list(rows.values()), offences


def write(repo: Path, index: Index) -> list[str]:
    """Ask the index, and write the result where nothing is wrong; else what is. Raises IndexFailure."""
    texts = {chosen.path: (repo / chosen.path).read_text(encoding="utf-8") for chosen in SETS}
    found = evaluate(index, {(path, python): pins(text, python) for path, text in texts.items() for python in PYTHONS})
    tables, offences = {}, []
    for chosen in SETS:
        tables[chosen.path], wrong = examine(repo, chosen, [found[chosen.path, python] for python in PYTHONS])
        offences += wrong
    if not offences:
        (repo / RESULT).write_text(table.written(tables, date.today()), encoding="utf-8")
    return offences


def check(repo: Path) -> list[str]:
    """Where the committed result and the constraints differ. Asks nobody."""
    held = table.read((repo / RESULT).read_text(encoding="utf-8"))
    stale = []
    for chosen in SETS:
        rows = held.get(chosen.path, [])
        text = (repo / chosen.path).read_text(encoding="utf-8")
        now = {(python, *pin) for python in PYTHONS for pin in pins(text, python).values()}
        then = {(python, row.name, row.version) for row in rows for python in row.cells}
        stale += [f"{RESULT} lacks {name}=={version} of {chosen.path}" for _, name, version in sorted(now - then)]
        stale += [f"{chosen.path} lacks {name}=={version} of {RESULT}" for _, name, version in sorted(then - now)]
        server = {canonicalize_name(row.name) for row in rows if row.by == "server"}
        asked = [
            wanted
            for wanted in roots(repo, chosen.needed, base=True)
            if not wanted.marker or any(wanted.marker.evaluate(environment(python)) for python in PYTHONS)
        ]
        direct = {canonicalize_name(wanted.name) for wanted in asked}
        stale += [f"{RESULT} does not know that the server asks for {name}" for name in sorted(direct - server)]
    return list(dict.fromkeys(stale))


def main(argv: list[str]) -> int:
    """Ask the index which wheels there are; with --check, only compare the committed result with the constraints."""
    parser = argparse.ArgumentParser(prog="python -m constraints.wheels", description=main.__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args(argv).check:
        offences = [f"{offence}: run `make wheels`" for offence in check(REPO)]
    else:
        try:
            with closing(configured()) as index:
                offences = write(REPO, index)
        except IndexFailure as failure:
            offences = [str(failure)]
    for offence in offences:
        print(offence, file=sys.stderr)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
