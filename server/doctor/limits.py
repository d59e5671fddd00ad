"""Looks at what the kernel lets this process have: shared memory, open files, locked memory."""

from collections.abc import Iterator
from pathlib import Path

from configs.serve import GIB, MIB, ServeConfig
from server.descriptors import ENOUGH, connections_at_once
from server.doctor.finding import Finding, fail, ok, warn
from server.doctor.machine import Machine, in_list
from shm import OwnerError, check_root, default_root, private_root


def findings(machine: Machine, config: ServeConfig, npu: bool) -> Iterator[Finding]:
    yield _shared_memory(machine, config)
    yield _open_files(machine, config)
    if npu:
        yield _locked(machine)
        yield _numa(machine)


def _shared_memory(machine: Machine, config: ServeConfig) -> Finding:
    check = "shared memory"
    wanted = config.shm.pool_bytes
    path = private_root(machine.path(str(config.shm.root))) if config.shm.root else machine.path(str(default_root()))
    lies = path if path.is_dir() else path.parent  # the server makes the last directory alone
    name = machine.named(lies)
    if not lies.is_dir():
        return fail(
            check,
            f"{name} is missing",
            f"Mount a tmpfs there: docker run --shm-size {_gib(wanted)}, or an emptyDir with medium: Memory.",
        )
    if why := _kept_out(machine, path, lies):
        return fail(
            check,
            why,
            "Mount it for writing, and for this user: docker run --shm-size, an emptyDir with medium: Memory; or name "
            "another directory in --shm-root.",
        )
    room = machine.disk_space(lies)
    remedy = (
        f"Give it room: docker run --shm-size {_gib(wanted)}, sizeLimit of the emptyDir in Kubernetes; or lower "
        "--shm-mib."
    )
    if room.total and room.total < wanted:
        return warn(check, f"{name} holds {_mib(room.total)} of the {_mib(wanted)} of --shm-mib", remedy)
    if room.total and room.free < wanted:
        return warn(
            check,
            f"{name} has {_mib(room.free)} free, and --shm-mib takes up to {_mib(wanted)}",
            "End or clean up what fills it (`ls -l` shows it), or lower --shm-mib.",
        )
    return ok(
        check, f"{name}, {_mib(room.free) if room.total else 'without a limit'} for the {_mib(wanted)} of --shm-mib"
    )


def _kept_out(machine: Machine, path: Path, lies: Path) -> str:
    """Why the server may not make its directory, or its files in it."""
    if machine.tries is None:
        return ""
    try:
        check_root(path)
    except OwnerError as error:
        return str(error)
    why = machine.tries.writing(lies)
    return f"{machine.named(lies)}: {why}" if why else ""


def _open_files(machine: Machine, config: ServeConfig) -> Finding:
    """The server raises the soft limit to the hard one itself."""
    _, limit = machine.limits("Max open files")
    wanted = config.http.max_connections
    room = connections_at_once(config, ENOUGH if limit is None else limit)
    if room >= wanted:
        return ok("open files", "unlimited" if limit is None else f"{limit:,}")
    return warn(
        "open files",
        f"{limit:,}, which leave room for {room:,} of the {wanted:,} connections of --max-connections",
        f"Raise the limit: docker run --ulimit nofile={max(2 * wanted, 65536)}, ulimit -Hn on a host; or lower "
        "--max-connections.",
    )


def _locked(machine: Machine) -> Finding:
    limit, _ = machine.limits("Max locked memory")
    if limit is None:
        return ok("locked memory", "unlimited")
    return warn(
        "locked memory",
        f"{limit >> 10:,} KiB, against which buffers for copies to the device may count",
        "Lift the limit: docker run --ulimit memlock=-1:-1, LimitMEMLOCK=infinity in systemd, ulimit -l on a host.",
    )


def _numa(machine: Machine) -> Finding:
    check = "NUMA"
    nodes = {
        path.parent.name: in_list(path.read_text())
        for path in machine.path("/sys/devices/system/node").glob("node[0-9]*/cpulist")
    }
    mine = machine.processors()
    within = [name for name, processors in nodes.items() if mine <= processors]
    if len(nodes) < 2 or within:
        return ok(check, f"{within[0]} alone" if within and len(nodes) > 1 else "one node")
    if "CPU_AFFINITY_CONF" in machine.variables:
        return ok(check, f"{len(nodes)} nodes; CPU_AFFINITY_CONF binds the engine")
    folders = [machine.path(name) for name in machine.variables.get("LD_LIBRARY_PATH", "").split(":") if name]
    if any((folder / "libdcmi.so").exists() for folder in folders):
        return ok(check, f"{len(nodes)} nodes; torch_npu asks the driver for the card's")
    return warn(
        check,
        f"{len(nodes)} nodes, and nothing keeps the engine on that of its card",
        "Put the driver's libdcmi.so on LD_LIBRARY_PATH (docker run -v /usr/local/dcmi:/usr/local/dcmi:ro), or bind "
        "the server: docker run --cpuset-cpus, taskset; `npu-smi info -t topo` says which processors.",
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes // MIB:,} MiB"


def _gib(nbytes: int) -> str:
    """For --shm-size: at least so much, in whole GiB."""
    return f"{-(-nbytes // GIB) + 1}g"
