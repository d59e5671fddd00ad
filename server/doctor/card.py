"""Asks CANN's runtime for the first NPU, in a process of its own: `python -m server.doctor.card` prints JSON.

Its library is called without torch: it may crash, or hang on a card that is not well, and neither ends the doctor.
"""

import ctypes
import dataclasses
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from server.doctor.finding import Finding, fail, ok, skip, warn
from server.doctor.machine import Card

_LIBRARY = "libascendcl.so"
_HBM = 1  # ACL_HBM_MEM in acl_rt.h
_SERVED = ("Ascend910B", "Ascend910_93")
_SECONDS, _HEALTH_SECONDS = 60, 30
_BUSY = 0.9  # of the memory; a card that nothing runs on has more


def ask(variables: Mapping[str, str]) -> Card:
    """What the runtime answers to a process with these variables."""
    return dataclasses.replace(_first(variables), health=_health(variables))


def _first(variables: Mapping[str, str]) -> Card:
    command = [sys.executable, "-m", __name__]
    try:
        said = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return Card(trouble=f"no answer in {_SECONDS} s")
    if said.returncode:
        last = said.stderr.strip().splitlines()[-1:]
        return Card(trouble=f"the process that asked ended with {said.returncode}: {' '.join(last) or 'no word'}")
    return Card(**json.loads(said.stdout.splitlines()[-1]))


def _health(variables: Mapping[str, str]) -> str:
    """Lines of `npu-smi info -t`, which are "name : value"; its tables change from driver to driver."""
    until = time.monotonic() + _HEALTH_SECONDS

    def values(name: str, *words: str) -> list[str]:
        command = ["npu-smi", "info", *words]
        left = max(until - time.monotonic(), 0.1)
        said = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=left)
        return re.findall(rf"^\s*{name}\s*:\s*(\S.*?)\s*$", said.stdout, re.MULTILINE)

    try:
        found = {npu: values("Health Status", "-t", "health", "-i", npu) for npu in values("NPU ID", "-l")}
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if not any(found.values()):
        return ""
    return ", ".join(f"{npu}: {', '.join(states)}" for npu, states in found.items() if set(states) - {"OK"}) or "OK"


def findings(card: Card | None) -> Iterator[Finding]:
    if card is None:
        yield skip("chip", "not asked: nothing runs on this tree of files")
        return
    if card.health == "OK":
        yield ok("health", "npu-smi says OK")
    elif card.health:
        remedy = "Look at it with `npu-smi info -t health -i NUMBER`, and take another card until it is OK."
        yield warn("health", f"npu-smi says {card.health}", remedy)
    else:
        yield skip("health", "npu-smi is not here, or does not say")
    if card.trouble:
        yield fail(
            "chip",
            card.trouble,
            "Ask `npu-smi info` whether the card is well and who has it; a container on an A3 wants "
            "--device /dev/davinci0:/dev/davinci0:rwm.",
        )
        return
    if not card.soc.startswith(_SERVED):
        yield fail(
            "chip", card.soc, "Take a machine with Atlas A2 (Ascend910B) or A3 (Ascend910_93): no other chip is served."
        )
    else:
        yield ok("chip", card.soc)
    memory = f"{card.free / 2**30:.1f} of {card.total / 2**30:.1f} GiB free"
    if card.free < _BUSY * card.total:
        yield warn(
            "NPU memory",
            memory,
            "End what else runs on this card (`npu-smi info` names it), or choose another one by "
            "ASCEND_RT_VISIBLE_DEVICES.",
        )
    else:
        yield ok("NPU memory", memory)


def first_card() -> Card:
    """In the process of its own."""
    try:
        runtime = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return Card(trouble=f"the runtime cannot be loaded: {error}")
    count = ctypes.c_uint32()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    runtime.aclrtGetSocName.restype = ctypes.c_char_p
    calls: tuple[tuple[str, Callable[[], int]], ...] = (
        ("aclInit", lambda: runtime.aclInit(None)),
        ("aclrtGetDeviceCount", lambda: runtime.aclrtGetDeviceCount(ctypes.byref(count))),
        ("aclrtSetDevice", lambda: runtime.aclrtSetDevice(0)),
        ("aclrtGetMemInfo", lambda: runtime.aclrtGetMemInfo(_HBM, ctypes.byref(free), ctypes.byref(total))),
    )
    for name, call in calls:
        code = call()
        if code:
            return Card(trouble=f"{name} of CANN's runtime failed with {code}")
    soc = (runtime.aclrtGetSocName() or b"").decode()
    return Card(count=count.value, soc=soc, free=free.value, total=total.value)


if __name__ == "__main__":
    card = first_card()
    print(json.dumps({name: getattr(card, name) for name in Card.__slots__}))
