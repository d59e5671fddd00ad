"""What ranks need to reach each other by HCCL."""

from dataclasses import replace
from pathlib import Path

import msgspec

from configs.serve import ServeConfig
from server.doctor.finding import Finding
from server.doctor.hccl import findings
from server.doctor.machine import Machine
from tests.server.doctor.trees import CONFIG, refusing, status, whole, with_variables, write
from tests.server.tables import each_of


def found(machine: Machine, **settings: object) -> list[Finding]:
    config: ServeConfig = msgspec.structs.replace(CONFIG, step_seconds=settings.pop("step_seconds", 60.0))
    return list(findings(machine, msgspec.structs.replace(config, engine=msgspec.structs.replace(
        config.engine, tensor_parallel=2, **settings))))  # fmt: skip


def test_a_whole_machine_has_no_fault(tmp_path: Path) -> None:
    assert [(one.verdict, one.check, one.found) for one in found(whole(tmp_path))] == [
        ("ok", "HCCL", "no variable that does harm"),
        ("ok", "HCCL ports", "60000 to 60015 can be had"),
        ("ok", "user", "uid 4321 has a name"),
    ]


@each_of(
    "variables",
    [
        {"HCCL_CONNECT_TIMEOUT": "120", "HCCL_EXEC_TIMEOUT": "60", "HCCL_BUFFSIZE": "200"},
        {"HCCL_EXEC_TIMEOUT": "0", "HCCL_WHITELIST_DISABLE": "1"},  # 0: HCCL waits for ever
        {"HCCL_OP_EXPANSION_MODE": "AI_CPU", "HCCL_INTRA_ROCE_ENABLE": "1"},
        {"HCCL_IF_IP": "127.0.0.1", "HCCL_SOCKET_IFNAME": "none"},  # the first counts
        {"HCCL_IF_IP": "::1"},
        {"HCCL_SOCKET_IFNAME": "=eth0,enp0"},
        {"HCCL_SOCKET_IFNAME": "en,et"},
        {"HCCL_SOCKET_IFNAME": "^=eth0"},
        {"HCCL_SOCKET_IFNAME": "^docker"},
    ],
)
def test_what_does_no_harm(variables: dict[str, str], tmp_path: Path) -> None:
    assert {one.verdict for one in found(with_variables(whole(tmp_path), variables))} == {"ok"}


@each_of(
    ("variables", "verdict", "check", "said", "remedy"),
    [
        ({"HCCL_CONNECT_TIMEOUT": "60"}, "fail", "HCCL_CONNECT_TIMEOUT", "60: HCCL takes 120 to 7200", "Set HCCL_C"),
        ({"HCCL_CONNECT_TIMEOUT": "2 h"}, "fail", "HCCL_CONNECT_TIMEOUT", "2 h: HCCL takes 120", "Set HCCL_C"),
        ({"HCCL_EXEC_TIMEOUT": "59"}, "warn", "HCCL_EXEC_TIMEOUT", "59 s: a rank that waits", "Set it above --step-s"),
        ({"HCCL_EXEC_TIMEOUT": "0.05"}, "warn", "HCCL_EXEC_TIMEOUT", "0.05 s: a rank", "Set it above --step-s"),
        ({"HCCL_EXEC_TIMEOUT": "long"}, "fail", "HCCL_EXEC_TIMEOUT", "long: HCCL takes seconds", "Unset HCCL_EXEC"),
        ({"HCCL_OP_EXPANSION_MODE": "AIV"}, "fail", "HCCL_OP_EXPANSION_MODE", "AIV: captures", "Unset HCCL_OP"),
        ({"HCCL_BUFFSIZE": "0"}, "fail", "HCCL_BUFFSIZE", "0: HCCL takes whole MB", "Set HCCL_BUFFSIZE=200"),
        ({"HCCL_BUFFSIZE": "1024"}, "warn", "HCCL_BUFFSIZE", "2,048 MiB of each card", "Unset HCCL_BUFFSIZE"),
        ({"HCCL_BUFFSIZE": "31"}, "warn", "HCCL_BUFFSIZE", "31 MB, and a step may sum 32 MiB", "Set HCCL_BUFFSIZE=200"),
        (
            {"HCCL_WHITELIST_DISABLE": "0"}, "fail", "HCCL_WHITELIST_DISABLE",
            "0: addresses are held against a list, and HCCL_WHITELIST_FILE names no file", "Unset HCCL_WHITELIST",
        ),
        (
            {"HCCL_WHITELIST_DISABLE": "0", "HCCL_WHITELIST_FILE": "/etc/list"}, "fail", "HCCL_WHITELIST_DISABLE",
            "0: addresses are held against a list, and HCCL_WHITELIST_FILE names /etc/list, which", "Unset HCCL_W",
        ),
        ({"RANK_TABLE_FILE": "/etc/ranks"}, "fail", "RANK_TABLE_FILE", "set: torch_npu takes", "Unset RANK_TABLE"),
        (
            {"HCCL_INTRA_PCIE_ENABLE": "1", "HCCL_INTRA_ROCE_ENABLE": "1"}, "fail", "HCCL_INTRA_ROCE_ENABLE",
            "1, as HCCL_INTRA_PCIE_ENABLE", "Unset HCCL_INTRA",
        ),
        ({"HCCL_IF_IP": "10.1.1.1,10.1.1.2"}, "fail", "HCCL_IF_IP", "10.1.1.1,10.1.1.2: no address", "Unset HCCL_IF"),
        ({"HCCL_IF_IP": "host-1"}, "fail", "HCCL_IF_IP", "host-1: no address", "Unset HCCL_IF_IP"),
        ({"HCCL_IF_IP": "10.1.1.1"}, "fail", "HCCL_IF_IP", "10.1.1.1: not ours", "Unset HCCL_IF_IP"),
        (
            {"HCCL_SOCKET_IFNAME": "enp"}, "fail", "HCCL_SOCKET_IFNAME", "enp leaves none of eth0, lo", "Unset HCCL_S",
        ),
        ({"HCCL_SOCKET_IFNAME": "=eth"}, "fail", "HCCL_SOCKET_IFNAME", "=eth leaves none of", "Unset HCCL_SOCKET"),
        ({"HCCL_SOCKET_IFNAME": "^eth,lo"}, "fail", "HCCL_SOCKET_IFNAME", "^eth,lo leaves none", "Unset HCCL_SOCKET"),
        (
            {"HCCL_IF_BASE_PORT": "80"}, "fail", "HCCL_IF_BASE_PORT", "80: HCCL takes 1024 to 65520",
            "Set HCCL_HOST_SOCKET_PORT_RANGE=auto",
        ),
        (
            {"HCCL_HOST_SOCKET_PORT_RANGE": "9-3"}, "fail", "HCCL_HOST_SOCKET_PORT_RANGE", "9-3: HCCL takes auto, or",
            "Set HCCL_HOST_SOCKET_PORT_RANGE=auto",
        ),
    ],
)  # fmt: skip
def test_what_harms(
    variables: dict[str, str], verdict: str, check: str, said: str, remedy: str, tmp_path: Path
) -> None:
    machine = refusing(with_variables(whole(tmp_path), variables), "10.1.1.1:0", why="not ours")
    [wrong] = [one for one in found(machine) if one.verdict != "ok"]
    assert (wrong.verdict, wrong.check) == (verdict, check)
    assert wrong.found.startswith(said) and wrong.remedy.startswith(remedy), wrong


def test_settings_decide_what_is_too_short_and_too_small(tmp_path: Path) -> None:
    machine = with_variables(whole(tmp_path), {
        "HCCL_EXEC_TIMEOUT": "100", "HCCL_OP_EXPANSION_MODE": "AIV", "HCCL_BUFFSIZE": "256",
    })  # fmt: skip
    said = found(machine, step_seconds=101.0, graphs=False, max_batched_tokens=16384)
    assert [one.check for one in said if one.verdict != "ok"] == ["HCCL_EXEC_TIMEOUT"]


def test_a_list_of_addresses_that_is_there(tmp_path: Path) -> None:
    machine = with_variables(whole(tmp_path), {"HCCL_WHITELIST_DISABLE": "0", "HCCL_WHITELIST_FILE": "/etc/list"})
    write(tmp_path, "/etc/list", "{}")
    assert {one.verdict for one in found(machine)} == {"ok"}


@each_of(
    ("variables", "taken", "verdict", "said"),
    [
        ({}, ["0.0.0.0:60003"], "warn", "60003 of 60000 to 60015 cannot be had"),
        ({"HCCL_IF_BASE_PORT": "20000"}, ["0.0.0.0:60003"], "ok", "20000 to 20015 can be had"),
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "auto"}, ["0.0.0.0:60003"], "ok", "those that the system gives"),
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "20000,20004-20006"}, ["0.0.0.0:20001"], "ok", "20000 to 20006 can be had"),
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "20000,20004-20006"}, ["0.0.0.0:20005"], "warn", "20005 of 20000"),
        ({"HCCL_IF_BASE_PORT": "50000"}, [], "warn", "50000 to 50015 can be had now, and the system may give"),
    ],
)
def test_the_ports_of_the_host(
    variables: dict[str, str], taken: list[str], verdict: str, said: str, tmp_path: Path
) -> None:
    machine = refusing(with_variables(whole(tmp_path), variables), *taken)
    [ports] = [one for one in found(machine) if one.check == "HCCL ports"]
    assert ports.verdict == verdict and ports.found.startswith(said), ports


def test_ports_that_nobody_reserved(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    write(tmp_path, "/proc/sys/net/ipv4/ip_local_reserved_ports", "\n")
    [ports] = [one for one in found(machine) if one.verdict != "ok"]
    assert ports.verdict == "warn" and "--sysctl net.ipv4.ip_local_reserved_ports=60000-60015" in ports.remedy
    write(tmp_path, "/proc/sys/net/ipv4/ip_local_port_range", "32768\t59999\n")
    assert {one.verdict for one in found(machine)} == {"ok"}


def test_a_tree_of_files_has_no_ports(tmp_path: Path) -> None:
    machine = replace(with_variables(whole(tmp_path), {"HCCL_IF_IP": "10.1.1.1"}), tries=None)
    assert [one.verdict for one in found(machine)] == ["ok", "skip", "ok"]


def test_a_user_without_a_name(tmp_path: Path) -> None:
    machine = whole(tmp_path)
    write(tmp_path, "/proc/self/status", status(uid=777))
    [user] = [one for one in found(machine) if one.verdict != "ok"]
    assert (user.verdict, user.check) == ("warn", "user") and "uid 777 has no line in /etc/passwd" in user.found
    (tmp_path / "etc/passwd").unlink()
    assert found(machine)[-1].verdict == "skip"
