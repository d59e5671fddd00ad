"""Looks at what a server computes with where it takes no NPU: torch, memory, cores."""

from collections.abc import Iterator

from configs.checkpoint import CheckpointError
from configs.machine import free_host_bytes, usable_cores
from configs.serve import MIB, ServeConfig
from server.doctor.finding import Finding, fail, ok, skip, warn
from server.doctor.machine import Machine

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def findings(machine: Machine, config: ServeConfig) -> Iterator[Finding]:
    yield _torch(machine)
    yield _memory(machine, config)
    yield _cores(machine)


def _torch(machine: Machine) -> Finding:
    found = machine.package("torch")
    if found is not None:
        return ok("torch", found)
    return fail(
        "torch",
        "not installed",
        "Install it: pip install --extra-index-url https://download.pytorch.org/whl/cpu -c constraints/cpu.txt -e .",
    )


def _memory(machine: Machine, config: ServeConfig) -> Finding:
    """The weights take about as much as their files."""
    check = "memory"
    try:
        free = free_host_bytes(machine.root)
    except (CheckpointError, OSError):
        return skip(check, "the kernel does not say how much is free")
    folder = None if config.model.wanted else config.model.path
    files = [path for pattern in _WEIGHTS for path in folder.glob(pattern)] if folder else []
    weights = sum(path.stat().st_size for path in files)
    said = (
        f"{free // MIB:,} MiB free for {weights // MIB:,} MiB of weights and {config.shm.pool_bytes // MIB:,} MiB of "
        "--shm-mib"
    )
    if free >= weights + config.shm.pool_bytes:
        return ok(check, said)
    return warn(
        check,
        said,
        "Give it more (docker run --memory, resources.limits.memory in Kubernetes), lower --shm-mib, or serve a "
        "smaller checkpoint.",
    )


def _cores(machine: Machine) -> Finding:
    n, (_, quota) = len(machine.processors()), usable_cores(machine.root)
    return ok("cores", f"{n}" if quota is None else f"{n}, and time for {quota:.1f} of them")
