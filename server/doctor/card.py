"""Asks CANN's runtime for the first NPUs, in a process of its own: `python -m server.doctor.card N` prints JSON.

Its library is called without torch: it may crash, or hang on a card that is not well, and neither ends the doctor.
"""

import ctypes
import dataclasses
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from server.doctor.finding import Finding, fail, ok, skip, warn
from server.doctor.machine import Card

_LIBRARY = "libascendcl.so"
_HBM = 1  # ACL_HBM_MEM in acl_rt.h
_SERVED = ("Ascend910B", "Ascend910_93")
_SECONDS, _HEALTH_SECONDS = 60, 30
_BUSY = 0.9  # of the memory; a card that nothing runs on has more
# ACL_RT_DEVS_TOPOLOGY_* in acl_rt.h: bits of what aclrtGetDevicesTopo says, by the name that npu-smi has for them.
_LINKS = {0x01: "HCCS", 0x40: "HCCS_SW", 0x20: "SIO", 0x02: "PIX", 0x04: "PIB", 0x08: "PHB", 0x10: "SYS"}
_FAST = 0x01 | 0x40 | 0x20  # made for what cards say to each other; the others are PCIe and the host


def ask(variables: Mapping[str, str], wanted: int = 1) -> Card:
    """What the runtime answers to a process with these variables about the first cards."""
    return dataclasses.replace(_first(variables, wanted), health=_health(variables))


def _first(variables: Mapping[str, str], wanted: int) -> Card:
    command = [sys.executable, "-m", __name__, str(wanted)]
    try:
        said = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return Card(trouble=f"no answer in {_SECONDS} s")
    if said.returncode:
        last = said.stderr.strip().splitlines()[-1:]
        return Card(trouble=f"the process that asked ended with {said.returncode}: {' '.join(last) or 'no word'}")
    return msgspec.json.decode(said.stdout.splitlines()[-1], type=Card)


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


def findings(card: Card | None, wanted: int = 1) -> Iterator[Finding]:
    """wanted: cards that one server takes."""
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
    if wanted > 1:
        yield _alike(card, wanted)
        yield _linked(card)


def _alike(card: Card, wanted: int) -> Finding:
    """Whether the cards of all ranks are one kind, and have as much room: the least decides for all."""
    check = "cards"
    if card.count < wanted:
        return fail(
            check,
            f"CANN's runtime shows {card.count}, and --tensor-parallel {wanted} takes as many",
            f"Give the container {wanted} cards with what is beside them, or lower --tensor-parallel.",
        )
    closed = [f"card {i}: {one.trouble}" for i, one in enumerate(card.others, 1) if one.trouble]
    if closed:
        return fail(check, "; ".join(closed), "Ask `npu-smi info` whether it is well and who has it.")
    every = (card, *card.others)
    kinds = {(one.soc, round(one.total / 2**30)) for one in every}
    if len(kinds) > 1:
        return warn(
            check,
            "unlike: " + ", ".join(f"{i} {one.soc} of {one.total / 2**30:.0f} GiB" for i, one in enumerate(every)),
            "Take cards of one kind: each step waits for the slowest, and the smallest decides the KV cache.",
        )
    busy = [i for i, one in enumerate(every) if one.free < _BUSY * one.total and i]
    if busy:
        return warn(
            check,
            ", ".join(f"{every[i].free / 2**30:.1f} GiB free on card {i}" for i in busy)
            + f", and {card.free / 2**30:.1f} on the first",
            "End what else runs on them (`npu-smi info` names it), or choose others by ASCEND_RT_VISIBLE_DEVICES: the "
            "one with the least room decides the KV cache of all.",
        )
    return ok(check, f"{wanted} of {card.soc}, {min(one.free for one in every) / 2**30:.1f} GiB free or more")


def _linked(card: Card) -> Finding:
    check = "links"
    if not card.links:
        return skip(check, "the runtime does not say how cards are connected; `npu-smi info -t topo` may")
    slow = [f"{a} and {b} by {_link(how)}" for a, b, how in card.links if not how & _FAST]
    if not slow:
        return ok(check, " and ".join(sorted({_link(how) for _, _, how in card.links})))
    return warn(
        check,
        f"cards {', '.join(slow)}",
        "Choose cards that HCCS joins, by ASCEND_RT_VISIBLE_DEVICES (`npu-smi info -t topo` shows them): two sums a "
        "layer go between them.",
    )


def _link(how: int) -> str:
    return "+".join(name for bit, name in _LINKS.items() if how & bit) or f"what the runtime calls {how}"


def first_cards(wanted: int) -> Card:
    """The first of so many, in the process of its own."""
    try:
        runtime = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return Card(trouble=f"the runtime cannot be loaded: {error}")
    count = ctypes.c_uint32()
    runtime.aclrtGetSocName.restype = ctypes.c_char_p
    trouble = _failed(
        ("aclInit", lambda: runtime.aclInit(None)),
        ("aclrtGetDeviceCount", lambda: runtime.aclrtGetDeviceCount(ctypes.byref(count))),
    )
    if trouble:
        return Card(trouble=trouble)
    numbers = range(min(wanted, max(count.value, 1)))
    first, *others = (_one(runtime, number) for number in numbers)
    pairs = [(a, b) for a in numbers for b in numbers if a < b]
    links = tuple((a, b, how) for a, b in pairs if (how := _between(runtime, a, b)))
    return dataclasses.replace(first, count=count.value, others=tuple(others), links=links)


def _one(runtime: ctypes.CDLL, number: int) -> Card:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    trouble = _failed(
        ("aclrtSetDevice", lambda: runtime.aclrtSetDevice(number)),
        ("aclrtGetMemInfo", lambda: runtime.aclrtGetMemInfo(_HBM, ctypes.byref(free), ctypes.byref(total))),
    )
    if trouble:
        return Card(trouble=trouble)
    return Card(soc=(runtime.aclrtGetSocName() or b"").decode(), free=free.value, total=total.value)


def _failed(*calls: tuple[str, Callable[[], int]]) -> str:
    """The first of them that fails, and how; none behind it is made."""
    for name, call in calls:
        if code := call():
            return f"{name} of CANN's runtime failed with {code}"
    return ""


def _between(runtime: ctypes.CDLL, one: int, other: int) -> int:
    """0 where the runtime has no such call, or no answer."""
    how = ctypes.c_uint64()
    if not hasattr(runtime, "aclrtGetDevicesTopo"):
        return 0
    return 0 if runtime.aclrtGetDevicesTopo(one, other, ctypes.byref(how)) else how.value


if __name__ == "__main__":
    print(msgspec.json.encode(first_cards(int(sys.argv[1]))).decode())
