"""Looks at what the kernel lets this process have: shared memory, open files, locked memory."""

from collections.abc import Iterator
from pathlib import Path

from configs.serve import GIB, MIB, ServeConfig
from server.doctor.finding import Finding, fail, ok, warn
from server.doctor.machine import Machine
from shm import default_root

_OWN_FILES = 256  # libraries, logs, children and the engine's device, rounded up


def findings(machine: Machine, config: ServeConfig, npu: bool) -> Iterator[Finding]:
    yield _shared_memory(machine, config)
    yield _open_files(machine, config)
    if npu:
        yield _locked(machine)


def _shared_memory(machine: Machine, config: ServeConfig) -> Finding:
    check = "shared memory"
    wanted = config.shm.pool_bytes
    path = machine.path(str(config.shm.root or default_root()))
    lies = next(place for place in (path, *path.parents) if place.is_dir())
    name = f"/{lies.relative_to(machine.root)}"
    if lies == machine.root:
        return fail(
            check,
            f"{Path('/', path.relative_to(machine.root)).parent} is missing",
            f"Mount a tmpfs there: docker run --shm-size {_gib(wanted)}, or an emptyDir with medium: Memory.",
        )
    room = machine.room(lies)
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


def _open_files(machine: Machine, config: ServeConfig) -> Finding:
    limit, wanted = machine.limit("Max open files"), config.http.max_requests + _OWN_FILES
    if limit is None or limit >= wanted:
        return ok("open files", "unlimited" if limit is None else f"{limit:,}")
    return warn(
        "open files",
        f"{limit:,}, and {config.http.max_requests} requests at once may take {wanted:,}",
        f"Raise the limit: docker run --ulimit nofile={max(wanted, 65536)}, ulimit -n on a host; or lower "
        "--max-requests.",
    )


def _locked(machine: Machine) -> Finding:
    limit = machine.limit("Max locked memory")
    if limit is None:
        return ok("locked memory", "unlimited")
    return warn(
        "locked memory",
        f"{limit >> 10:,} KiB, against which buffers for copies to the device may count",
        "Lift the limit: docker run --ulimit memlock=-1:-1, LimitMEMLOCK=infinity in systemd, ulimit -l on a host.",
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes // MIB:,} MiB"


def _gib(nbytes: int) -> str:
    """For --shm-size: at least so much, in whole GiB."""
    return f"{-(-nbytes // GIB) + 1}g"
