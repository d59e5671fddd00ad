"""Shared memory, open files, locked memory."""

import shutil
from dataclasses import replace
from pathlib import Path

from configs.serve import GIB, MIB
from server.descriptors import OWN
from server.doctor import limits
from server.doctor.machine import DiskSpace, Machine
from tests.server.doctor.trees import CONFIG, HOME, whole, with_variables, write
from tests.server.tables import each_of

LIMITS = "Max open files {} {} files\nMax locked memory {} 9 bytes\n"


def faults(machine: Machine, npu: bool = True) -> list[tuple[str, str, str, str]]:
    found = limits.findings(machine, CONFIG, npu)
    return [(one.verdict, one.check, one.found, one.remedy) for one in found if one.verdict != "ok"]


def test_a_whole_machine_has_no_fault(tmp_path: Path) -> None:
    found = {one.check: one.found for one in limits.findings(whole(tmp_path), CONFIG, True)}
    assert found == {
        "shared memory": "/dev/shm, 2,048 MiB for the 1,024 MiB of --shm-mib",
        "open files": "65,536",
        "locked memory": "unlimited",
        "NUMA": "one node",
    }
    unlimited = replace(whole(tmp_path), disk_space=lambda path: DiskSpace(total=0, free=0))
    assert next(iter(limits.findings(unlimited, CONFIG, True))).found.startswith("/dev/shm, without a limit")


def test_dockers_own_shared_memory_is_too_small(tmp_path: Path) -> None:
    machine = replace(whole(tmp_path), disk_space=lambda path: DiskSpace(total=64 * MIB, free=64 * MIB))
    [(verdict, check, found, remedy)] = faults(machine)
    assert (verdict, check) == ("warn", "shared memory") and "--shm-size 2g" in remedy
    assert found == "/dev/shm holds 64 MiB of the 1,024 MiB of --shm-mib"


def test_shared_memory_that_somebody_fills(tmp_path: Path) -> None:
    machine = replace(whole(tmp_path), disk_space=lambda path: DiskSpace(total=2 * GIB, free=100 * MIB))
    [(verdict, check, found, _)] = faults(machine)
    assert (verdict, check) == ("warn", "shared memory") and "100 MiB free" in found


def test_no_shared_memory(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    shutil.rmtree(tmp_path / "dev")
    [(verdict, check, found, remedy)] = faults(machine)
    assert (verdict, check, found) == ("fail", "shared memory", "/dev/shm is missing") and "--shm-size" in remedy


def test_few_open_files(tmp_path: Path) -> None:
    """The hard limit counts, as in the server itself."""
    machine = whole(tmp_path)
    wanted = CONFIG.http.max_connections
    enough = wanted + OWN + 2 * (CONFIG.workers + 1)
    write(tmp_path, "/proc/self/limits", LIMITS.format(9, enough - 1, "unlimited"))
    [(verdict, check, found, remedy)] = faults(machine)
    assert (verdict, check) == ("warn", "open files") and "--ulimit nofile=" in remedy
    assert found.startswith(f"{enough - 1:,}, which leave room for {wanted - 1:,} of the {wanted:,} connections")
    write(tmp_path, "/proc/self/limits", LIMITS.format(9, enough, "unlimited"))
    assert faults(machine) == []
    write(tmp_path, "/proc/self/limits", LIMITS.format(9, "unlimited", "unlimited"))
    assert faults(machine) == []


def test_locked_memory_matters_beside_an_npu(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    write(tmp_path, "/proc/self/limits", LIMITS.format(9, "unlimited", 65536))
    [(verdict, check, found, remedy)] = faults(machine)
    assert (verdict, check) == ("warn", "locked memory") and found.startswith("64 KiB") and "memlock=-1:-1" in remedy
    assert faults(machine, npu=False) == []


@each_of(
    ("allowed", "variables", "dcmi", "verdict", "word"),
    [
        ("0-3", {}, False, "ok", "node0 alone"),
        ("0-7", {}, False, "warn", "--cpuset-cpus"),
        ("2,5", {}, False, "warn", "2 nodes"),
        ("0-7", {"CPU_AFFINITY_CONF": "1"}, False, "ok", "CPU_AFFINITY_CONF"),
        ("0-7", {}, True, "ok", "asks the driver"),
    ],
)
def test_what_binds_the_engine_to_the_node_of_its_card(
    allowed: str, variables: dict[str, str], dcmi: bool, verdict: str, word: str, tmp_path: Path
) -> None:
    machine = with_variables(whole(tmp_path), variables)
    for node, processors in (("node0", "0-3"), ("node1", "4-7")):
        write(tmp_path, f"/sys/devices/system/node/{node}/cpulist", f"{processors}\n")
    write(tmp_path, "/proc/self/status", f"Cpus_allowed_list:\t{allowed}\n")
    if dcmi:
        write(tmp_path, f"{HOME}/lib64/libdcmi.so", "")
    found = limits.findings(machine, CONFIG, npu=True)
    (numa,) = (one for one in found if one.check == "NUMA")
    assert numa.verdict == verdict and word in f"{numa.found} {numa.remedy}"
