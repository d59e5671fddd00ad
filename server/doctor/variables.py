"""Looks at variables of torch_npu and CANN that harm this server, or that contradict each other."""

import re
from collections.abc import Iterator, Mapping

from server.doctor.finding import Finding, fail, ok, warn

_TORCH, _TORCH_NPU = "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"
# What the doctor reads. A value of the first is a number, a list of them or options; others hold paths,
# addresses or names of a host.
_TOLD = (
    _TORCH, _TORCH_NPU, "TASK_QUEUE_ENABLE", "ASCEND_LAUNCH_BLOCKING", "STREAMS_PER_DEVICE", "CPU_AFFINITY_CONF",
    "ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT",
    "HCCL_OP_EXPANSION_MODE", "HCCL_BUFFSIZE", "HCCL_WHITELIST_DISABLE", "HCCL_INTRA_PCIE_ENABLE",
    "HCCL_INTRA_ROCE_ENABLE", "HCCL_IF_BASE_PORT", "HCCL_HOST_SOCKET_PORT_RANGE",
)  # fmt: skip
_NAMED = (
    "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH", "TOOLCHAIN_HOME",
    "LD_LIBRARY_PATH", "PYTHONPATH", "PATH", "TMPDIR", "TEMP", "TMP", "HCCL_IF_IP", "HCCL_SOCKET_IFNAME",
    "HCCL_WHITELIST_FILE", "RANK_TABLE_FILE",
)  # fmt: skip
_PLAIN = re.compile(r"[\w.:,;=+ -]{0,100}")
_EXCLUDED = ("max_split_size_mb", "garbage_collection_threshold")  # beside expandable_segments:True


def told(variables: Mapping[str, str]) -> dict[str, str]:
    """Which of those that matter are set; with its value where that is neither a path nor a secret."""
    return {
        name: variables[name] if name in _TOLD and _PLAIN.fullmatch(variables[name]) else "set"
        for name in (*_TOLD, *_NAMED)
        if name in variables
    }


def findings(variables: Mapping[str, str], graphs: bool) -> Iterator[Finding]:
    """`graphs`: whether decode steps are to be captured."""
    found = [*_of_steps(variables, graphs), *_of_allocator(variables), *_of_streams(variables)]
    yield from found or [ok("variables", "none that does harm")]


def _of_steps(variables: Mapping[str, str], graphs: bool) -> Iterator[Finding]:
    if variables.get("TASK_QUEUE_ENABLE") == "2" and graphs:
        yield fail(
            "TASK_QUEUE_ENABLE",
            "2: decode steps cannot be captured as graphs",
            "Set TASK_QUEUE_ENABLE=1, or unset it; or serve with --no-graphs.",
        )
    if variables.get("TASK_QUEUE_ENABLE") == "0":
        yield warn(
            "TASK_QUEUE_ENABLE",
            "0: each operator waits until it is launched",
            "Set TASK_QUEUE_ENABLE=1, or unset it; 0 is for finding the operator that fails.",
        )
    blocking = variables.get("ASCEND_LAUNCH_BLOCKING", "0")
    if blocking != "0":
        say, also = (fail, "graphs cannot be captured, and ") if graphs else (warn, "")
        yield say(
            "ASCEND_LAUNCH_BLOCKING",
            f"{blocking}: {also}each operator waits for the device",
            "Unset ASCEND_LAUNCH_BLOCKING; it is for finding the operator that fails.",
        )


def _of_allocator(variables: Mapping[str, str]) -> Iterator[Finding]:
    if _TORCH in variables and _TORCH_NPU in variables:
        yield fail(
            _TORCH_NPU,
            f"it and {_TORCH} are both set, which torch_npu refuses",
            f"Unset {_TORCH}, and keep {_TORCH_NPU}.",
        )
    for name in (_TORCH, _TORCH_NPU):
        if name not in variables:
            continue
        options = dict(part.partition(":")[::2] for part in variables[name].replace(" ", "").split(","))
        beside = [option for option in _EXCLUDED if option in options]
        if options.get("expandable_segments", "").lower() == "true" and beside:
            yield fail(
                name,
                f"expandable_segments:True excludes {' and '.join(beside)}",
                f"Take {' and '.join(beside)} out of {name}.",
            )
        elif options.get("expandable_segments", "").lower() != "true":
            yield warn(
                name,
                f"{variables[name]}: pictures of many sizes leave holes between segments of fixed ones",
                f"Put expandable_segments:True into {name}, alone; or unset it.",
            )


def _of_streams(variables: Mapping[str, str]) -> Iterator[Finding]:
    if variables.get("STREAMS_PER_DEVICE", "32") not in ("8", "32"):
        yield fail(
            "STREAMS_PER_DEVICE",
            f"{variables['STREAMS_PER_DEVICE']}: torch_npu takes 8 or 32",
            "Set STREAMS_PER_DEVICE=32, or unset it.",
        )
