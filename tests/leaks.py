"""Reads shared-memory roots from outside, by their files and locks alone, and says what a test left there.

It does not ask the code under test. A lease is a file named by 11 hex digits, a path file ends in `.paths`, an owner
`<id>.owner` is alive while some process holds its lock.
"""

import contextlib
import fcntl
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

SETTLE_SECONDS = 30.0  # an answer reaches the client a moment before its memory is given back
LEASE = re.compile(r"[0-9a-f]{11}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What stood in two roots before a test."""

    own: Path  # this session's alone, and every root beside it whose name begins like it: all there is ours
    shared: Path  # the user's default: other sessions and servers may live there
    names: frozenset[str]  # in the shared one


def start_record(own: Path, shared: Path) -> Record:
    """The state before a test."""
    return Record(own=own, shared=shared, names=frozenset(names_in(shared)))


def left_behind(before: Record) -> list[str]:
    """What a test left, after giving it SETTLE_SECONDS to settle; empty when nothing is."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while problems := [*problems_in_all(before.own), *problems_of_this_process(before)]:
        if time.monotonic() > deadline:
            return problems
        time.sleep(0.05)
    return []


def roots_of(own: Path) -> list[Path]:
    """The session's root and those that tests made for themselves beside it, as far as they exist."""
    return sorted(own.parent / name for name in os.listdir(own.parent) if name.startswith(own.name))


def problems_in_all(own: Path) -> list[str]:
    """What is wrong in any of the session's roots."""
    return [problem for root in roots_of(own) for problem in problems_in(root)]


def problems_in(root: Path) -> list[str]:
    """What is wrong in a root of ours: leases and path files, and any file at all once no owner lives there."""
    names = names_in(root)
    alive = {name for name in names if name.endswith(".owner") and is_locked(root / name)}
    problems = [f"{root.name}: {kind}" for name in names if (kind := leak(name))]
    dead = [name for name in names if name.endswith(".owner") and name not in alive]
    problems += [f"{root.name}: the owner file of a dead owner"] * len(dead)
    if not problems and names and not alive:
        problems.append(f"{root.name}: {len(names)} files and no owner")
    return problems


def problems_of_this_process(before: Record) -> list[str]:
    """What is new in the shared root and is this very process's, or nobody's any more."""
    root = before.shared
    if not (names := names_in(root)):  # after nearly every test: to read this process's descriptors costs the most
        return []
    fresh = [name for name in names if name not in before.names and name.endswith(".owner")]
    problems = [f"{root.name}: the owner file of a dead owner" for name in fresh if not is_locked(root / name)]
    for owner in held_owners(root):
        problems += [f"{root.name}: a lease of this process" for name in listed(owner) if (root / name).exists()]
        paths = f"{owner.name.removesuffix('.owner')}."
        problems += [
            f"{root.name}: a path file of this process"
            for name in names_in(root)
            if name.startswith(paths) and name.endswith(".paths")
        ]
    return problems


def leak(name: str) -> str | None:
    """What a file that may not outlive its request is; None for every other file."""
    if LEASE.fullmatch(name):
        return "a lease"
    return "a path file" if name.endswith(".paths") else None


def held_owners(root: Path) -> list[Path]:
    """The owner files in `root` that this process holds open."""
    held = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this very listing is gone by now
            target = os.readlink(f"/proc/self/fd/{entry}")
            if target.startswith(f"{root}/") and target.endswith(".owner"):
                held.append(Path(target))
    return held


def listed(owner: Path) -> list[str]:
    """The names of leases that an owner file lists."""
    try:
        text = owner.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return []
    return [name for name in text.split() if LEASE.fullmatch(name)]


def names_in(root: Path) -> list[str]:
    """Every file name in `root`, sorted; none when it does not exist."""
    try:
        return sorted(os.listdir(root))
    except FileNotFoundError:
        return []


def is_locked(path: Path) -> bool:
    """Whether some process holds the flock of `path`. A file that is gone counts as held: nobody left it behind."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
