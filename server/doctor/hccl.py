"""Looks at what the ranks of an engine need to reach each other by HCCL: its variables, host ports, this user's name.

What each variable does and takes is from the pages of CANN 9.0 (maintenance reference, environment variables).
"""

import re
from collections.abc import Iterator, Mapping

from configs.serve import ServeConfig
from server.doctor.finding import Finding, fail, ok, skip, warn
from server.doctor.machine import Machine

_PORTS, _BASE, _N_PORTS = "HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_IF_BASE_PORT", 16
_USUAL_BASE = 60000
_RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
_WITHIN = "/proc/sys/net/ipv4/ip_local_port_range"
_BUFFER = 200  # MB of HCCL_BUFFSIZE where nobody says it; a group takes two
_ALLOW, _ALLOWED = "HCCL_WHITELIST_DISABLE", "HCCL_WHITELIST_FILE"
_WIDEST = 8192  # values of a token in the largest published model that is served


def findings(machine: Machine, config: ServeConfig) -> Iterator[Finding]:
    """For a server of several ranks on NPUs."""
    variables = machine.variables
    found = [
        *_seconds(variables, config), *_expansion(variables, config.engine.graphs), *_buffer(variables, config),
        *_allowed(machine), *_others(variables), *_address(machine), *_interface(machine),
    ]  # fmt: skip
    yield from found or [ok("HCCL", "no variable that does harm")]
    yield _ports(machine)
    yield _user(machine)


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) else None


def _seconds(variables: Mapping[str, str], config: ServeConfig) -> Iterator[Finding]:
    name = "HCCL_CONNECT_TIMEOUT"
    if name in variables and not 120 <= (_whole(variables[name]) or 0) <= 7200:
        yield fail(name, f"{variables[name]}: HCCL takes 120 to 7200", f"Set {name}=120, or unset it.")
    name = "HCCL_EXEC_TIMEOUT"
    if name not in variables:
        return
    seconds, step = variables[name], config.step_seconds
    if not re.fullmatch(r"[0-9]{1,10}(\.[0-9]+)?", seconds):
        yield fail(name, f"{seconds}: HCCL takes seconds", f"Unset {name}: its own value is 1836.")
    elif 0 < float(seconds) < step:  # 0 waits for ever, which the server itself ends
        yield warn(
            name,
            f"{seconds} s: a rank that waits for another one fails so early, and a step may take {step:g} s and more "
            "(--step-seconds)",
            f"Set it above --step-seconds, or unset {name}: the server finds a rank that hangs by itself.",
        )


def _expansion(variables: Mapping[str, str], graphs: bool) -> Iterator[Finding]:
    name = "HCCL_OP_EXPANSION_MODE"
    if variables.get(name) == "AIV" and graphs:
        yield fail(
            name,
            "AIV: captures of decode steps with sums ended in `task not supported` elsewhere, or hung at replay",
            f"Unset {name}, or serve with --no-graphs.",
        )


def _buffer(variables: Mapping[str, str], config: ServeConfig) -> Iterator[Finding]:
    name = "HCCL_BUFFSIZE"
    if name not in variables:
        return
    size = _whole(variables[name])
    most = -(-(config.engine.max_batched_tokens or 2048) * _WIDEST * 2 >> 20)
    if not size:
        yield fail(name, f"{variables[name]}: HCCL takes whole MB from 1", f"Set {name}={_BUFFER}, or unset it.")
    elif size > _BUFFER and size > most:
        yield warn(
            name,
            f"{2 * size:,} MiB of each card are its buffers, and a step sums at most {most:,} MiB",
            f"Unset {name}: its own {_BUFFER} take {2 * _BUFFER} MiB, and the KV cache gets the rest.",
        )
    elif size < most:
        yield warn(
            name,
            f"{size} MB, and a step may sum {most:,} MiB: such sums go in pieces",
            f"Set {name}={max(most, _BUFFER)}, or unset it.",
        )


def _allowed(machine: Machine) -> Iterator[Finding]:
    """The list of addresses that may take part, which is off unless somebody turned it on."""
    if machine.variables.get(_ALLOW) != "0":
        return
    file = machine.variables.get(_ALLOWED)
    if not file or machine.text(file) is None:
        missing = f"{_ALLOWED} names {file}, which cannot be read" if file else f"{_ALLOWED} names no file"
        yield fail(_ALLOW, f"0: addresses are held against a list, and {missing}", f"Unset {_ALLOW}, or set it to 1.")


def _others(variables: Mapping[str, str]) -> Iterator[Finding]:
    if variables.get("RANK_TABLE_FILE"):
        yield fail(
            "RANK_TABLE_FILE",
            "set: torch_npu takes the ranks from that file, and not those that the server starts",
            "Unset RANK_TABLE_FILE.",
        )
    if variables.get("HCCL_INTRA_PCIE_ENABLE") == variables.get("HCCL_INTRA_ROCE_ENABLE") == "1":
        yield fail(
            "HCCL_INTRA_ROCE_ENABLE",
            "1, as HCCL_INTRA_PCIE_ENABLE: HCCL refuses both",
            "Unset HCCL_INTRA_ROCE_ENABLE and HCCL_INTRA_PCIE_ENABLE.",
        )


def _address(machine: Machine) -> Iterator[Finding]:
    name = "HCCL_IF_IP"
    if name not in machine.variables or machine.tries is None:
        return
    address = machine.variables[name]
    why = machine.tries.listening(address, 0) if re.fullmatch(r"[0-9.]+|[0-9a-fA-F:]+", address) else "no address"
    if why is not None:
        yield fail(name, f"{address}: {why}", f"Unset {name}, or set it to one address of this host or container.")


def _interface(machine: Machine) -> Iterator[Finding]:
    """^: all but these; =: these names, and not what begins so. HCCL_IF_IP counts before it."""
    name = "HCCL_SOCKET_IFNAME"
    if name not in machine.variables or "HCCL_IF_IP" in machine.variables:
        return
    rest = machine.variables[name]
    but, rest = rest.startswith("^"), rest.removeprefix("^")
    exact, rest = rest.startswith("="), rest.removeprefix("=")
    asked = tuple(word for word in rest.split(",") if word)
    there = sorted(path.name for path in machine.path("/sys/class/net").glob("*"))
    left = [one for one in there if (one in asked if exact else one.startswith(asked)) != but]
    if there and not left:
        yield fail(
            name,
            f"{machine.variables[name]} leaves none of {', '.join(there)}",
            f"Unset {name}: one host is enough, and any interface of it.",
        )


def _ports(machine: Machine) -> Finding:
    """Rank 0 listens at one of them while ranks meet."""
    check = "HCCL ports"
    ranges = machine.variables.get(_PORTS)
    if ranges == "auto":
        return ok(check, "those that the system gives")
    name = _PORTS if ranges else _BASE
    asked = ranges or machine.variables.get(_BASE, str(_USUAL_BASE))
    ports = _listed(asked) if ranges else _based(asked)
    if not ports:
        takes = "auto, or ports and ranges such as 60000-60015,61000" if ranges else "1024 to 65520"
        return fail(name, f"{asked}: HCCL takes {takes}", f"Set {_PORTS}=auto, and unset {_BASE}.")
    said = f"{min(ports)} to {max(ports)}"
    if machine.tries is None:
        return skip(check, f"{said}: not tried, for nothing listens on this tree of files")
    taken = [port for port in sorted(ports)[:_N_PORTS] if machine.tries.listening("0.0.0.0", port)]
    if taken:
        return warn(
            check,
            f"{', '.join(map(str, taken))} of {said} cannot be had",
            f"End what listens there (`ss -ltnp` names it), or set {_PORTS}=auto.",
        )
    if _may_be_given_away(machine, ports):
        return warn(
            check,
            f"{said} can be had now, and the system may give one to any other connection",
            f"Keep them: --sysctl net.ipv4.ip_local_reserved_ports={min(ports)}-{max(ports)} of docker run, sysctls "
            f"of a pod, sysctl -w on a host; or set {_PORTS}=auto.",
        )
    return ok(check, f"{said} can be had")


def _based(text: str) -> set[int]:
    base = _whole(text) or 0
    return set(range(base, base + _N_PORTS)) if 1024 <= base <= 65520 else set()


def _listed(text: str) -> set[int]:
    """Empty where it is no list of ports."""
    found: set[int] = set()
    for part in text.split(","):
        matched = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())
        low, high = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, 0)
        if not 1 <= low <= high <= 65535:
            return set()
        found |= set(range(low, high + 1))
    return found


def _may_be_given_away(machine: Machine, ports: set[int]) -> bool:
    given = (machine.text(_WITHIN) or "").split()
    if len(given) != 2:
        return False
    kept = _listed(text) if (text := (machine.text(_RESERVED) or "").strip()) else set()
    return any(int(given[0]) <= port <= int(given[1]) for port in ports - kept)


def _user(machine: Machine) -> Finding:
    """HcclGetRootInfo failed with 19 where it had none (vllm-ascend, issue 9490)."""
    check, uid = "user", machine.rights().uid
    names = machine.text("/etc/passwd")
    if names is None:
        return skip(check, "/etc/passwd cannot be read")
    if re.search(rf"^[^:\n]*:[^:\n]*:{uid}:", names, re.MULTILINE):
        return ok(check, f"uid {uid} has a name")
    return warn(
        check,
        f"uid {uid} has no line in /etc/passwd, without which HCCL does not start",
        "Run as a user of the image (uid 1000 in ours), or give this one a line; a directory service may name it, too.",
    )
