"""`pixelferry doctor`: what this machine lacks for `serve` with the same settings, each with its remedy.

It needs no NPU, reads no tensor of a model, and loads no torch. What it finds has not been compared with real
hardware: so it advises, and whether a server starts, the server itself decides.
"""

import argparse
import dataclasses
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from msgspec.structs import replace

from configs.logs import LogConfig
from configs.serve import Device, ServeConfig
from configs.setting import SettingsError
from configs.settings import child_env, load_config
from server.doctor import ascend, card, cpu, devices, hccl, limits, places, variables, weights
from server.doctor.causes import with_causes
from server.doctor.finding import Finding, skip
from server.doctor.machine import DiskSpace, Machine, Tries
from server.doctor.report import as_json, as_lines, as_table
from server.logs.setup import complain

GOOD, FAULTS, USAGE = 0, 1, 2
_OTHERS = "every other flag, variable and profile is that of `pixelferry serve`; --device npu, --shm-mib matter here"


def doctor(argv: Sequence[str]) -> int:
    """Print what is found; the exit code: 1 where something is found that does not serve."""
    parser = argparse.ArgumentParser(prog="pixelferry doctor", allow_abbrev=False, epilog=_OTHERS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--faults", action="store_true", help="print a line for each fault and warning on stderr alone")
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="look at the tree of files below DIR, not at this machine"
    )
    own, rest = parser.parse_known_args(argv)
    try:
        if own.root is not None and not own.root.is_dir():
            raise SettingsError(f"--root: {own.root} is not a directory")
        config = load_config(rest)
    except SettingsError as error:
        complain(error, LogConfig())
        return USAGE
    found = examine(this_machine() if own.root is None else tree(own.root.absolute(), child_env({})), config)
    device = config.engine.device
    if own.faults:
        print("".join(f"{line}\n" for line in as_lines(found)), end="", file=sys.stderr)
    else:
        print(as_json(found, device) if own.json else as_table(found, device))
    return FAULTS if any(finding.verdict == "fail" for finding in found) else GOOD


def examine(machine: Machine, config: ServeConfig) -> list[Finding]:
    """All findings on a machine, for a server of `config`."""
    device, ranks = config.engine.device, config.engine.tensor_parallel
    npu = device == "npu" or (device == "auto" and (bool(devices.cards(machine)) or ascend.traces(machine)))
    if npu:
        answer = None if machine.card is None else machine.card(ranks)
        found = [
            *ascend.findings(machine),
            *devices.findings(machine, ranks),
            *card.findings(answer, ranks),
        ]
        if answer is not None and answer.soc:
            found.append(ascend.operators(machine, answer.soc))
        found += variables.findings(machine.variables, config.engine.graphs)
        if ranks > 1:
            found += [*hccl.findings(machine, config), cpu.cores(machine, config, npu)]
        found = with_causes(found)
    elif device == "auto":
        found = [skip("NPU", "no card, driver, CANN or torch_npu here; --device npu says what one needs")]
    else:
        found = [skip("NPU", f"not looked at: --device {device}")]
    if device == "auto":  # which serves without the NPU then, and says so
        found = [replace(one, verdict="warn") if one.verdict == "fail" else one for one in found]
    if not npu:
        found += cpu.findings(machine, config)
    found += [*limits.findings(machine, config, npu), *places.findings(machine, config.http)]
    return [*found, weights.finding(config.model)]


def look(device: Device) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """For a file that is sent away: variables as `variables.told`, and each finding's check and verdict."""
    machine = this_machine()
    try:
        found = examine(machine, load_config(["--device", device]))
    except SettingsError:
        found = [skip("settings", "refused")]
    return variables.told(machine.variables), [(finding.check, finding.verdict) for finding in found]


def this_machine() -> Machine:
    env = child_env({})
    tries = Tries(writing=_cannot_write, listening=_cannot_listen)
    return dataclasses.replace(tree(Path("/"), env), card=lambda wanted: card.ask(env, wanted), tries=tries)


def tree(root: Path, env: Mapping[str, str]) -> Machine:
    """Files of a machine below `root`, which runs nothing; variables, packages and room are those of this one."""
    return Machine(root=root, variables=env, package=_package, disk_space=_disk_space, card=None)


def _package(name: str) -> str | None:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None


def _disk_space(path: Path) -> DiskSpace:
    found = shutil.disk_usage(path)
    return DiskSpace(total=found.total, free=found.free)


def _cannot_write(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"0")
    except OSError as error:
        return os.strerror(error.errno or 0)
    return None


def _cannot_listen(host: str, port: int) -> str | None:
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except TypeError:
        return "not a host name"
    except OSError as error:  # gaierror's numbers are negative
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)
    return None
