"""Made-up machines: trees of files on which everything is right, for tests that spoil one thing."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from configs.serve import GIB, ModelConfig, ServeConfig
from configs.settings import EMBEDDED_MODEL
from server.doctor.machine import Card, DiskSpace, Machine, Tries

CONFIG = ServeConfig(model=ModelConfig(path=EMBEDDED_MODEL, served_name=""))
PACKAGES = {"torch": "2.10.0+cpu", "torch_npu": "2.10.0.post4"}
CARD = Card(count=1, soc="Ascend910B3", free=61 * GIB, total=64 * GIB, health="OK")
TWO_CARDS = replace(CARD, count=2, others=(Card(soc="Ascend910B3", free=60 * GIB, total=64 * GIB),), links=((0, 1, 1),))
HOME = "/usr/local/Ascend/cann-9.1.0"
VARIABLES = {
    "ASCEND_HOME_PATH": HOME,
    "ASCEND_OPP_PATH": f"{HOME}/opp",
    "LD_LIBRARY_PATH": f"{HOME}/lib64:",
}
LINKED = ("libhccl.so", "libascendcl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so")
FILES = {
    "/usr/local/Ascend/driver/version.info": "Version=25.5.1\nascendhal_version=7.35.23\n",
    "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so": "",
    "/usr/local/Ascend/ascend-toolkit/set_env.sh": "",
    f"{HOME}/x86_64-linux/ascend_toolkit_install.info": "package_name=Ascend-cann-toolkit\nversion=9.1.0\n",
    **{f"{HOME}/{part}/part": "" for part in ("opp", "runtime", "compiler")},
    **{f"{HOME}/lib64/{name}": "" for name in LINKED},
    **{f"/dev/{name}": "" for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc")},
    f"{HOME}/opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b/ops_nn/kernel.o": "",
    "/dev/shm/other": "",
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nserver:x:4321:4321::/:/usr/sbin/nologin\n",
    "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
    "/proc/sys/net/ipv4/ip_local_reserved_ports": "60000-60015\n",
    "/sys/class/net/eth0/mtu": "1500\n",
    "/sys/class/net/lo/mtu": "65536\n",
    "/proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8388608 kB\n",
    "/proc/self/limits": """\
Limit                     Soft Limit           Hard Limit           Units
Max open files            65536                65536                files
Max locked memory         unlimited            unlimited            bytes
""",
}
OURSELVES = 4321  # nobody's: so the group alone opens the nodes


def status(*groups: int, uid: int = OURSELVES, capabilities: int = 0) -> str:
    """/proc/self/status of a process."""
    own = f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
    cores = "Cpus_allowed_list:\t0-23\n"
    return f"{own}Groups:\t{' '.join(map(str, groups))} \nCapEff:\t{capabilities:016x}\n{cores}"


def whole(root: Path) -> Machine:
    """A machine of an Atlas A2 with two cards that lacks nothing; its nodes are of this process's group, 0660."""
    for name, text in FILES.items():
        write(root, name, text)
    for path in (root / "dev").iterdir():
        if path.is_file():
            path.chmod(0o660)
    write(root, "/proc/self/status", status(os.getgid()))
    return Machine(
        root=root,
        variables=dict(VARIABLES),
        package=PACKAGES.get,
        disk_space=lambda path: DiskSpace(total=2 * GIB, free=2 * GIB),
        card=lambda wanted: CARD if wanted == 1 else TWO_CARDS,
        tries=Tries(writing=lambda folder: None, listening=lambda host, port: None),
    )


def write(root: Path, name: str, text: str) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def refusing(machine: Machine, *places: str, why: str = "Read-only file system") -> Machine:
    """Nothing is written to these folders, as the machine names them, and no such port can be had."""
    return replace(
        machine,
        tries=Tries(
            writing=lambda folder: why if folder in [Path(one) for one in places] else None,
            listening=lambda host, port: why if f"{host}:{port}" in places else None,
        ),
    )


def with_variables(machine: Machine, changes: Mapping[str, str | None]) -> Machine:
    """None takes a variable away."""
    merged = {**machine.variables, **changes}
    return replace(machine, variables={name: value for name, value in merged.items() if value is not None})
