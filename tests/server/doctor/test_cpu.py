"""Torch, memory and cores of a machine without an NPU."""

from dataclasses import replace
from pathlib import Path

import msgspec

from configs.serve import MIB, ModelConfig, ServeConfig
from server.doctor import cpu
from tests.server.doctor.trees import CONFIG, whole, write
from tests.tables import each_of

CGROUP = "sys/fs/cgroup"


def of_ranks(n: int) -> ServeConfig:
    return msgspec.structs.replace(CONFIG, engine=msgspec.structs.replace(CONFIG.engine, tensor_parallel=n))


def test_what_a_whole_machine_has(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    write(tmp_path, "/proc/self/status", "Cpus_allowed_list:\t0-3,8\n")
    assert [(one.verdict, one.check, one.found) for one in cpu.findings(machine, CONFIG)] == [
        ("ok", "torch", "2.10.0+cpu"),
        ("ok", "memory", "8,192 MiB free for 8 MiB of weights and 1,024 MiB of --shm-mib"),
        ("ok", "cores", "5"),
    ]


def test_a_cgroup_leaves_less(tmp_path: Path) -> None:
    """Of memory and of time."""
    machine = whole(tmp_path / "root")
    write(machine.root, "/proc/self/cgroup", "0::/\n")
    for name, text in (("memory.max", 700 * MIB), ("memory.current", 100 * MIB), ("memory.stat", ""),
                       ("cpu.max", "150000 100000")):  # fmt: skip
        write(machine.root, f"{CGROUP}/{name}", f"{text}\n".lstrip("\n"))
    weights = tmp_path / "model"
    weights.mkdir()
    with (weights / "model.safetensors").open("wb") as file:
        file.truncate(300 * MIB)
    config = msgspec.structs.replace(CONFIG, model=ModelConfig(path=weights, served_name=""))
    _, memory, cores = cpu.findings(machine, config)
    assert (memory.verdict, memory.found) == (
        "warn", "600 MiB free for 300 MiB of weights and 1,024 MiB of --shm-mib",
    ) and "--memory" in memory.remedy  # fmt: skip
    assert cores.found == "24, and time for 1.5 of them"


def test_without_torch(tmp_path: Path) -> None:
    torch, *_ = cpu.findings(replace(whole(tmp_path), package=lambda name: None), CONFIG)
    assert (torch.verdict, torch.found) == ("fail", "not installed") and "constraints/cpu.txt" in torch.remedy


def test_a_kernel_that_does_not_say(tmp_path: Path) -> None:
    (whole(tmp_path).root / "proc/meminfo").unlink()
    machine = whole(tmp_path)
    (tmp_path / "proc/meminfo").unlink()
    _, memory, _ = cpu.findings(machine, CONFIG)
    assert memory.verdict == "skip"


@each_of(
    ("ranks", "npu", "verdict", "said"),
    [
        (2, False, "ok", "4; 1 of 3 threads for each of 2 ranks"),
        (8, False, "warn", "4; 1 of 3 threads for each of 8 ranks; 8 ranks want one for each"),
        (2, True, "ok", "4"),
        (4, True, "warn", "4; 4 ranks want 2 for each"),
    ],
)
def test_the_cores_of_several_ranks(ranks: int, npu: bool, verdict: str, said: str, tmp_path: Path) -> None:
    machine = whole(tmp_path)
    write(tmp_path, "/proc/self/status", "Cpus_allowed_list:\t0-3\n")
    found = cpu.cores(machine, of_ranks(ranks), npu)
    assert found.verdict == verdict and found.found.startswith(said), found
    assert bool(found.remedy) == (verdict == "warn")


def test_the_memory_of_several_ranks(tmp_path: Path) -> None:
    _, memory, _ = cpu.findings(whole(tmp_path), of_ranks(4))
    assert memory.found.startswith("8,192 MiB free, 2,048 MiB for each of 4 ranks, for 8 MiB of weights")
