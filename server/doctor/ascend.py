"""Looks at what Ascend ships: the driver, its libraries, CANN, what torch_npu links to, and whether versions belong."""

import re
from collections.abc import Iterator
from pathlib import Path

from server.doctor.finding import Finding, fail, ok, skip, warn
from server.doctor.machine import Machine
from server.doctor.versions import judge

_DRIVER = "/usr/local/Ascend/driver"
_OLDEST_FOR_GRAPHS = (25, 5, 1)  # before it, capturing ended in "Alloc sq cq fail" (vllm-ascend's FAQ)
_HOMES = ("/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest")
_LINKED = ("libhccl.so", "libascendcl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so")
_KERNELS = "built-in/op_impl/ai_core/tbe/kernel"
_PARTS = ("runtime", "compiler")  # what torch_npu looks for in it
_OPERATORS = "ASCEND_OPP_PATH"
_PATHS = ("LD_LIBRARY_PATH", "PYTHONPATH", "PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_AICPU_PATH", "TOOLCHAIN_HOME")
_SOURCE = "Source set_env.sh of CANN before the start, as the image's entry point does: source "


def findings(machine: Machine) -> Iterator[Finding]:
    yield _driver(machine)
    yield _driver_libraries(machine)
    home = _cann_home(machine)
    version = _cann_version(home)
    yield _cann(machine, home, version)
    if home is not None:
        yield from _paths(machine, home)
        yield _parts(machine, home)
        yield _libraries(machine)
        yield from _python_packages(machine, home)
    yield judge(machine.package("torch"), machine.package("torch_npu"), version)


def traces(machine: Machine) -> bool:
    """Whether somebody meant this machine to have an NPU: a driver, CANN or torch_npu."""
    return machine.path(_DRIVER).exists() or _cann_home(machine) is not None or machine.package("torch_npu") is not None


def _driver(machine: Machine) -> Finding:
    text = machine.text(f"{_DRIVER}/version.info")
    if text is None:
        return fail(
            "driver",
            f"{_DRIVER}/version.info is missing",
            "Install Ascend's driver (HDK) 25.5.1 or later on the host; start a container with "
            f"-v {_DRIVER}/version.info:{_DRIVER}/version.info:ro -v {_DRIVER}/lib64:{_DRIVER}/lib64:ro, and a "
            "--device for each card and what is beside it.",
        )
    found = re.search(r"^Version=(\S+)", text, re.MULTILINE | re.IGNORECASE)
    if found is None:
        return warn(
            "driver",
            f"{_DRIVER}/version.info {'names no version' if text.strip() else 'is empty'}",
            "Install the driver (HDK) again on the host; in a container, mount the host's own file.",
        )
    version = found[1]
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if numbers < _OLDEST_FOR_GRAPHS:
        return warn(
            "driver",
            version,
            "Update the driver (HDK) to 25.5.1 or later: older ones run out of queues when steps are captured.",
        )
    return ok("driver", version)


def _driver_libraries(machine: Machine) -> Finding:
    folder = machine.path(f"{_DRIVER}/lib64")
    if any((folder / below / "libascend_hal.so").exists() for below in ("", "common", "driver")):
        return ok("driver libraries", f"{_DRIVER}/lib64")
    return fail(
        "driver libraries",
        f"libascend_hal.so is not below {_DRIVER}/lib64",
        f"Start the container with -v {_DRIVER}/lib64:{_DRIVER}/lib64:ro; on a host, install the driver again.",
    )


def _cann_home(machine: Machine) -> Path | None:
    sourced = machine.variables.get("ASCEND_HOME_PATH") or machine.variables.get("ASCEND_TOOLKIT_HOME")
    found = (machine.path(name) for name in ((sourced,) if sourced else _HOMES))
    return next((path for path in found if path.is_dir()), None)


def _cann_version(home: Path | None) -> str | None:
    """As torch_npu reads it: from the file that the installation wrote."""
    if home is None:
        return None
    for path in _install_files(home):
        found = re.search(r"^version=(\d\S*)", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found:
            return found[1]
    return None


def _install_files(home: Path) -> list[Path]:
    return sorted([*home.glob("ascend_*_install.info"), *home.glob("*/ascend_*_install.info")])


def _cann(machine: Machine, home: Path | None, version: str | None) -> Finding:
    sourced = machine.variables.get("ASCEND_HOME_PATH") or machine.variables.get("ASCEND_TOOLKIT_HOME")
    if home is None and sourced:
        return fail("CANN", f"ASCEND_HOME_PATH names {sourced}, which is missing", f"{_SOURCE}<CANN>/set_env.sh")
    if home is None:
        return fail(
            "CANN",
            f"none in {' or '.join(_HOMES)}",
            "Use the image on quay.io/ascend/cann, or install CANN's toolkit, ops and NNAL and source set_env.sh.",
        )
    name = machine.named(home)
    if not sourced:
        return fail(
            "CANN", f"{version or 'some version'} lies in {name}, but is not sourced", f"{_SOURCE}{_set_env(machine)}"
        )
    if version is None:
        empty = [path for path in _install_files(home) if not path.read_bytes().strip()]
        return warn(
            "CANN",
            f"{machine.named(empty[0])} is empty" if empty else f"{name} does not say which version it is",
            "Install CANN again if torch_npu cannot be loaded: its ascend_toolkit_install.info is missing or broken.",
        )
    return ok("CANN", f"{version}, {name}")


def _paths(machine: Machine, home: Path) -> Iterator[Finding]:
    """Parts of two installations do not belong together, whichever of them comes first."""
    own = {path.resolve() for path in (home, *((home / part).resolve().parent for part in _PARTS))}
    others: dict[str, Path] = {}
    for name in (_OPERATORS, *_PATHS):
        entries = [machine.path(entry) for entry in machine.variables.get(name, "").split(":") if entry]
        strange = [path.resolve() for path in entries if home not in (path, *path.parents)]
        belong = [_installation(path) for path in strange if own.isdisjoint((path, *path.parents))]
        found = next(filter(None, belong), None)
        if found is not None:
            others[name] = found
    remedy = f"Start from a shell in which no other CANN was sourced. {_SOURCE}{_set_env(machine)}"
    if _OPERATORS in others:
        yield fail(
            _OPERATORS,
            f"it is of {machine.named(others.pop(_OPERATORS))}, and ASCEND_HOME_PATH is {machine.named(home)}",
            remedy,
        )
    if others:
        said = ", ".join(f"{name} has {machine.named(path)}" for name, path in others.items())
        yield fail("CANN paths", f"a second CANN: {said}, and ASCEND_HOME_PATH is {machine.named(home)}", remedy)


def _installation(path: Path) -> Path | None:
    """The CANN that a folder belongs to, if it does."""
    found = (one for one in (path, *path.parents) if all((one / part).is_dir() for part in _PARTS))
    return next(found, None)


def _parts(machine: Machine, home: Path) -> Finding:
    """What torch_npu looks for when it is imported."""
    operators = machine.variables.get(_OPERATORS)
    here = {
        _OPERATORS: operators is not None and machine.path(operators).is_dir(),
        **{part: (home / part).is_dir() for part in _PARTS},
    }
    missing = [part for part, there in here.items() if not there]
    if not missing:
        return ok("CANN parts", "operators, runtime, compiler")
    return fail(
        "CANN parts",
        f"{', '.join(missing)} not there",
        f"{_SOURCE}{_set_env(machine)}; if that does not help, install CANN's toolkit and the ops of this chip again.",
    )


def _python_packages(machine: Machine, home: Path) -> Iterator[Finding]:
    """CANN's compiler of operators is Python of its own, which may ask for older packages than are installed."""
    for metadata in sorted(home.glob("python/site-packages/*.dist-info/METADATA")):
        text = metadata.read_text(encoding="utf-8", errors="replace")
        for name, wanted in re.findall(r"^Requires-Dist: *(numpy|protobuf)\b *\(?([^;)\n]*)", text, re.MULTILINE):
            here = machine.package(name)
            if here is not None and not _within(here, wanted):
                yield warn(
                    "CANN packages",
                    f"{metadata.parent.name.partition('-')[0]} asks for {name} {wanted.strip()}, here is {here}",
                    "Nothing is wrong while no operator is compiled, and this server asks for none that is: send "
                    "the self-test's file if one is.",
                )


def _within(version: str, wanted: str) -> bool:
    """Whether it is below every upper bound of `wanted`, such as ">=1.19.2,<2"."""
    bounds = re.findall(r"(<=|<|==)\s*([\d.]+)", wanted)
    return all(_holds(_numbers(version), how, _numbers(bound)) for how, bound in bounds)


def _holds(here: tuple[int, ...], how: str, bound: tuple[int, ...]) -> bool:
    return here < bound if how == "<" else here[: len(bound)] <= bound if how == "<=" else here[: len(bound)] == bound


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def operators(machine: Machine, soc: str) -> Finding:
    """Whether the operators that are installed are those of this chip, such as Ascend910B3. What the toolkit alone
    brings is a folder `ops_oam`.
    """
    check, chip = "operators", re.sub(r"(?<=910B|0_93).*", "", soc).lower()
    folder = machine.path(machine.variables.get(_OPERATORS, "")) / _KERNELS
    there = sorted(path.name for path in folder.glob("ascend*") if any(one.name != "ops_oam" for one in path.iterdir()))
    if chip in there:
        return ok(check, f"of {chip}")
    if not folder.is_dir():
        return skip(check, f"not below {_KERNELS} of ASCEND_OPP_PATH")
    kind = "a3" if chip == "ascend910_93" else chip.removeprefix("ascend")
    return fail(
        check,
        f"of {', '.join(there) or 'no chip'}, and this one is {chip}",
        f"Install CANN's ops package of this chip, or build the image with --build-arg CHIP={kind}.",
    )


def _set_env(machine: Machine) -> str:
    scripts = ("/usr/local/Ascend/ascend-toolkit/set_env.sh", "/usr/local/Ascend/cann/set_env.sh")
    return next((name for name in scripts if machine.path(name).exists()), scripts[0])


def _libraries(machine: Machine) -> Finding:
    folders = [machine.path(name) for name in machine.variables.get("LD_LIBRARY_PATH", "").split(":") if name]
    missing = [name for name in _LINKED if not any((folder / name).exists() for folder in folders)]
    if not missing:
        return ok("CANN libraries", f"{len(_LINKED)} that torch_npu is linked to")
    return fail(
        "CANN libraries",
        f"{', '.join(missing)} not found along LD_LIBRARY_PATH",
        f"{_SOURCE}{_set_env(machine)}; if that does not help, the installation of CANN is not complete.",
    )
