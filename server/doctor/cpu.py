"""Looks at what a server computes with where it takes no NPU: torch, memory, cores; and at the cores of ranks."""

import math
from collections.abc import Iterator

from configs.checkpoint import CheckpointError
from configs.machine import free_host_bytes, usable_cores
from configs.serve import MIB, ServeConfig
from server.doctor.finding import Finding, fail, ok, skip, warn
from server.doctor.machine import Machine
from server.thread_limit import choose_threads

_OF_A_RANK = 2  # cores that one on an NPU keeps busy: torch_npu launches what it prepares from a thread of its own
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def findings(machine: Machine, config: ServeConfig) -> Iterator[Finding]:
    yield _torch(machine)
    yield _memory(machine, config)
    yield cores(machine, config, npu=False)


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
    ranks = config.engine.tensor_parallel
    each = f", {free // ranks // MIB:,} MiB for each of {ranks} ranks," if ranks > 1 else ""
    said = (
        f"{free // MIB:,} MiB free{each} for {weights // MIB:,} MiB of weights and {config.shm.pool_bytes // MIB:,} "
        "MiB of --shm-mib"
    )
    if free >= weights + config.shm.pool_bytes:
        return ok(check, said)
    return warn(
        check,
        said,
        "Give it more (docker run --memory, resources.limits.memory in Kubernetes), lower --shm-mib, or serve a "
        "smaller checkpoint.",
    )


def cores(machine: Machine, config: ServeConfig, npu: bool) -> Finding:
    """Those that a server of these settings may use, and what each of its ranks has of them."""
    check, ranks = "cores", config.engine.tensor_parallel
    n, (_, quota) = len(machine.processors()), usable_cores(machine.root)
    said = f"{n}" if quota is None else f"{n}, and time for {quota:.1f} of them"
    if ranks == 1:
        return ok(check, said)
    whole = max(1, n if quota is None else min(n, math.floor(quota)))
    if not npu:
        threads = choose_threads(config.engine.threads, config.workers, n, quota)
        said += f"; {threads.of_each(ranks)} of {threads.n} threads for each of {ranks} ranks"
    wanted = (_OF_A_RANK if npu else 1) * ranks
    if whole >= wanted:
        return ok(check, said)
    why = f"{_OF_A_RANK} for each: one prepares, one launches" if npu else "one for each: they wait for the slowest"
    return warn(
        check,
        f"{said}; {ranks} ranks want {why}",
        "Give it more (docker run --cpus, requests.cpu in Kubernetes), or lower --tensor-parallel.",
    )
