"""Looks at the device nodes of NPUs: which there are, whether we may open them, which one the server takes."""

import re
from collections.abc import Iterator
from pathlib import Path

from server.doctor.finding import Finding, fail, ok, warn
from server.doctor.machine import Machine, Rights

BESIDE = ("davinci_manager", "devmm_svm", "hisi_hdc")  # what every card needs
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
_RUNTIME = "ASCEND_VISIBLE_DEVICES"  # read by Ascend Docker Runtime, not by CANN


def cards(machine: Machine) -> list[Path]:
    """The nodes of NPUs, by number."""
    found = [path for path in machine.path("/dev").glob("davinci*") if re.fullmatch(r"davinci\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("davinci")))


def findings(machine: Machine, wanted: int = 1) -> Iterator[Finding]:
    """wanted: cards that one server takes."""
    found = cards(machine)
    if not found:
        yield _no_card(machine)
        return
    yield ok("NPUs", f"{len(found)}: {', '.join(path.name for path in found)}")
    beside = [machine.path(f"/dev/{name}") for name in BESIDE]
    missing = [f"/dev/{path.name}" for path in beside if not path.exists()]
    if missing:
        yield fail(
            "device files",
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            f"Start the container with {' '.join(f'--device {name}' for name in missing)}; "
            "on a host the driver makes them.",
        )
    else:
        yield ok("device files", ", ".join(BESIDE))
    yield _rights(machine.rights(), [*found, *(path for path in beside if path.exists())])
    yield _choice(machine, len(found), wanted)


def _no_card(machine: Machine) -> Finding:
    if machine.variables.get(_RUNTIME) == "void":
        return fail(
            "NPUs", f"{_RUNTIME}=void keeps every NPU out", f"Set {_RUNTIME} to the number of a card, such as 0."
        )
    return fail(
        "NPUs",
        "no /dev/davinci0 or other card",
        "Start the container with --device /dev/davinci0 (an A3 wants /dev/davinci0:/dev/davinci0:rwm); "
        "on a host, `npu-smi info` must list a card.",
    )


def _rights(rights: Rights, paths: list[Path]) -> Finding:
    closed = [path for path in paths if not rights.may_use(path)]
    we = f"we are uid {rights.uid} in the groups {', '.join(map(str, sorted(rights.groups)))}"
    if not closed:
        return ok("rights", f"every node opens; {we}")
    owned = closed[0].stat()
    return fail(
        "rights",
        f"{', '.join(path.name for path in closed)}: of {owned.st_uid}:{owned.st_gid}, mode "
        f"{owned.st_mode & 0o777:04o}; {we}",
        f"Add the nodes' group: docker run --group-add {owned.st_gid}, supplementalGroups: [{owned.st_gid}] in "
        "Kubernetes, usermod --append --groups on a host; leave the modes as they are.",
    )


def _choice(machine: Machine, n_cards: int, wanted: int) -> Finding:
    """CANN counts the cards that it sees from 0, whatever the numbers of their nodes."""
    asked = machine.variables.get(VISIBLE)
    if asked is None and wanted > 1:
        return ok("card", f"the first {wanted} of {n_cards}") if wanted <= n_cards else _too_few(n_cards, wanted)
    if asked is None:
        others = "" if n_cards == 1 else f"; {VISIBLE} chooses another one"
        return ok("card", f"the first of {n_cards}{others}")
    numbers = [word.strip() for word in asked.split(",")]
    wrong = [word for word in numbers if not word.isdigit() or int(word) >= n_cards]
    if wrong:
        return fail(
            "card",
            f"{VISIBLE}={asked} names {', '.join(wrong) or 'nothing'}, and there are cards 0 to {n_cards - 1}",
            f"Set {VISIBLE} to one number from 0 to {n_cards - 1}, or leave it out; a container counts its own cards.",
        )
    if wanted > 1 and (asked != ",".join(numbers) or sorted(set(map(int, numbers))) != list(map(int, numbers))):
        return fail(
            "card",
            f"{VISIBLE}={asked!r}: CANN takes numbers that rise, with a comma and nothing else between them",
            f"Set {VISIBLE}={','.join(map(str, sorted(set(map(int, numbers)))))}.",
        )
    if len(numbers) < wanted:
        return _too_few(len(numbers), wanted)
    if len(numbers) > wanted > 1:
        told = f"{VISIBLE}={asked} names {len(numbers)} cards, and --tensor-parallel {wanted} uses the first of them"
        return warn(
            "card", told, f"Set {VISIBLE}={','.join(numbers[:wanted])}, and leave the others to another server."
        )
    if len(numbers) > wanted:
        return warn(
            "card",
            f"{VISIBLE}={asked} names {len(numbers)} cards, and a server uses the first",
            f"Start one server a card: {VISIBLE}={numbers[0]}, and another server for each of the others.",
        )
    return ok("card", f"{VISIBLE}={asked}")


def _too_few(n_cards: int, wanted: int) -> Finding:
    return fail(
        "card",
        f"--tensor-parallel {wanted} takes as many cards, and a server sees {n_cards}",
        f"Give the container more cards (--device /dev/davinciN), name {wanted} in {VISIBLE}, or lower "
        "--tensor-parallel.",
    )
