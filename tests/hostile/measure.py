"""What an attack costs others: a second client, with and without it, and the server's state."""

import json
import math
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.running import REPO, RunningServer, children_of, until
from tests.hostile.loop_block import Longest, loop_of, main_thread_seconds

HEALTH_SECONDS = 0.25  # in which /health/live answers, by its p99: the attack runs on the same cores
MORE_SECONDS = 2.0  # what an attack may add to the p99 of a chat
PICTURE_WAITS_SECONDS = 5.0  # for which others' jobs may keep a picture waiting beside that: docs/operations.md
BASELINE_SECONDS = 10.0  # after the end of an attack; ten times as long where the clock is no judge
BLOCK_SECONDS = 0.25  # of processor time, that the loop may take at a stretch: what stands for the clock then
MEMORY_EVERY_SECONDS = 0.5
SAME = "127.0.0.1"  # the attackers' address
PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long is measured. The full one is what `make long` takes and docs/log.md quotes."""

    runs: int = 3
    questions: int = 100  # of each run, and of the quiet one before them; half of them with a picture
    every: float = 1.0  # seconds between two pairs of them
    clock: bool = True  # whether seconds of the clock are judged, which a busy machine makes longer


FULL = Scale()
SHORT = Scale(runs=1, questions=10, every=0.5)
COUNTED = Scale(runs=1, questions=10, every=0.5, clock=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One row. `go(server, killed)` is a block in which the attack goes on; it notes the children that it kills."""

    name: str
    go: Callable[[RunningServer, "set[int]"], AbstractContextManager[None]]
    memory_bytes: int  # what the server process may hold: the bound that the start-up table states
    may: frozenset[int] = frozenset()  # further statuses that the second client may see; outside the p99
    deadline: float | None = None  # seconds in which each chat is answered or refused; stands for the bar of the p99
    # Seconds by which no text may be late, and the p99 of pictures no later than PICTURE_WAITS_SECONDS beside; stands
    # for the bar of the p99 of all chats.
    late: float | None = None
    more: float = MORE_SECONDS  # that it may add to the p99 of a chat, where that is the bar
    warm: Callable[[RunningServer], None] | None = None  # what is done before the baseline is taken
    second: tuple[str, ...] = (SAME,)  # the second client's address, and its key if it has one


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the second client saw in one run, and what the server process took meanwhile."""

    chats: list[tuple[int, float]]  # a text and a picture in turn
    health: list[tuple[int, float]]
    peak_bytes: int
    loop_seconds: float  # processor time of the server's loop
    block_seconds: float = 0.0  # the most that it took at a stretch, where the clock is no judge

    @property
    def p99(self) -> float:
        """Of the chats that were answered."""
        return quantile([seconds for status, seconds in self.chats if status == 200], 0.99)

    @property
    def latest_text(self) -> float:
        """Seconds of the slowest chat without a picture."""
        return max(seconds for _, seconds in self.chats[::2])

    @property
    def pictures_p99(self) -> float:
        """Of the chats with a picture, whatever came of them."""
        return quantile([seconds for _, seconds in self.chats[1::2]], 0.99)

    @property
    def health_p99(self) -> float:
        """Of few probes all but the slowest: one may find the client itself waiting for a core."""
        return quantile([seconds for _, seconds in self.health], min(0.99, 1 - 1.5 / max(2, len(self.health))))

    @property
    def statuses(self) -> Counter[int]:
        return Counter(status for status, _ in self.chats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A row of the table."""

    attack: Attack
    quiet: Seen
    runs: list[Seen]
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [(f"{self.attack.name}, without", self.quiet)]
        rows += [(f"{self.attack.name}, run {i}", run) for i, run in enumerate(self.runs, 1)]
        lines = [
            "| row | chats | statuses | p50 s | p99 s | slowest s | slowest text s | live, p99 ms | live, slowest ms "
            "| PSS peak MiB | loop CPU s |",
            "|" + "---|" * 11,
        ]
        lines += ["| " + " | ".join([name, *cells(seen)]) + " |" for name, seen in rows]
        return "\n".join([*lines, *(f"- NOT HELD: {problem}" for problem in self.problems)])


def cells(seen: Seen) -> list[str]:
    answered = [seconds for status, seconds in seen.chats if status == 200]
    live = [seconds for _, seconds in seen.health]
    statuses = ", ".join(f"{n} x {status}" for status, n in sorted(seen.statuses.items()))
    return [
        str(len(seen.chats)), statuses, f"{quantile(answered, 0.5):.3f}", f"{seen.p99:.3f}",
        f"{max(seconds for _, seconds in seen.chats):.3f}", f"{seen.latest_text:.3f}",
        f"{1000 * seen.health_p99:.0f}", f"{1000 * max(live):.0f}",
        f"{seen.peak_bytes / (1 << 20):.0f}", f"{seen.loop_seconds:.1f}",
    ]  # fmt: skip


def measure(server: RunningServer, attack: Attack, scale: Scale) -> Report:
    """Ask without the attack, then in each run with it; look whether everything is back in between."""
    if attack.warm is not None:
        attack.warm(server)
    quiet = asked(server, scale, attack.second)
    rest = at_rest(server)
    patience = BASELINE_SECONDS if scale.clock else 10 * BASELINE_SECONDS
    runs, problems = [], []
    for number in range(1, scale.runs + 1):
        killed: set[int] = set()
        children = set(children_of(server.pid))
        with attack.go(server, killed):
            runs.append(asked(server, scale, attack.second))
        lost = children - killed - set(children_of(server.pid))
        problems += [f"run {number}: {problem}" for problem in judged(quiet, runs[-1], attack, clock=scale.clock)]
        problems += [f"run {number}: {len(lost)} children ended that the attack did not kill"] if lost else []
        try:
            until("the baseline", lambda: not beyond(rest, at_rest(server)), patience, every=0.25)
        except AssertionError:
            problems.append(f"run {number}: not back after {patience:g} s: {beyond(rest, at_rest(server))}")
    return Report(attack=attack, quiet=quiet, runs=runs, problems=problems)


def asked(server: RunningServer, scale: Scale, second: tuple[str, ...]) -> Seen:
    """One run of the second client, in a process of its own."""
    numbers = [str(scale.questions), str(scale.every)]
    command = [sys.executable, "-m", "tests.hostile.second_client", server.url, *numbers, *second]
    before = main_thread_seconds(server.pid)
    looked = nullcontext(Longest()) if scale.clock else loop_of(server.url, server.pid)
    with memory_peak(server.pid) as peak, looked as longest:
        done = subprocess.run(command, cwd=REPO, capture_output=True, check=True)
    seen = json.loads(done.stdout)
    pairs = {name: [(int(status), float(seconds)) for status, seconds in seen[name]] for name in ("chats", "health")}
    loop_seconds = main_thread_seconds(server.pid) - before
    return Seen(**pairs, peak_bytes=max(peak), loop_seconds=loop_seconds, block_seconds=longest.seconds)


def judged(quiet: Seen, run: Seen, attack: Attack, *, clock: bool = True) -> list[str]:
    """What of a run is not as it must be."""
    strange = {status: n for status, n in run.statuses.items() if status != 200 and status not in attack.may}
    problems = [f"{n} chats of the second client got {status}" for status, n in sorted(strange.items())]
    if not run.statuses[200]:
        problems.append("not one chat was answered")
    if any(status != 200 for status, _ in run.health):
        problems.append("/health/live did not always answer 200")
    if run.peak_bytes > attack.memory_bytes:
        problems.append(f"the server process held {run.peak_bytes >> 20} MiB, more than {attack.memory_bytes >> 20}")
    if run.block_seconds > BLOCK_SECONDS:
        problems.append(f"the loop was blocked for {run.block_seconds:.3f} s of processor time")
    return [*problems, *late(quiet, run, attack)] if clock else problems


def late(quiet: Seen, run: Seen, attack: Attack) -> list[str]:
    """What took too long, by the clock."""
    problems = []
    slowest = max(seconds for _, seconds in run.chats)
    if attack.deadline is not None and slowest > attack.deadline:
        problems.append(f"a chat took {slowest:.2f} s, more than its deadline of {attack.deadline:g}")
    if attack.late is not None and run.latest_text >= quiet.latest_text + attack.late:
        problems.append(f"a text took {run.latest_text:.2f} s, and {quiet.latest_text:.2f} s without the attack")
    most = quiet.pictures_p99 + (attack.late or 0.0) + PICTURE_WAITS_SECONDS
    if attack.late is not None and run.pictures_p99 >= most:
        problems.append(f"the p99 of pictures is {run.pictures_p99:.2f} s, and may be {most:.2f}")
    if attack.deadline is None and attack.late is None and run.statuses[200] and run.p99 >= quiet.p99 + attack.more:
        problems.append(f"the p99 of a chat is {run.p99:.2f} s, and {quiet.p99:.2f} s without the attack")
    if run.health_p99 > HEALTH_SECONDS:
        problems.append(f"the p99 of /health/live is {run.health_p99:.3f} s")
    return problems


def at_rest(server: RunningServer) -> dict[str, float]:
    """What must be the same before and after an attack."""
    text = server.http.get("/metrics").text  # once, on a connection that stays
    up = [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("pixelferry:children_up")]
    return {
        "not ready": float(server.ready() != 200),
        "children missing": -sum(up),
        "open descriptors": len(os.listdir(f"/proc/{server.pid}/fd")),
        "leased files": len(server.leased_names()),
        "body bytes": server.metric("mm_inflight_bytes"),
        "leased bytes": server.metric('shm_bytes{state="leased"}'),
        "requests": float(server.http.get("/health/ready").json()["requests"]),
    }


def beyond(rest: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """What is more than it was."""
    return {name: value for name, value in now.items() if value > rest[name]}


def pss_bytes(pid: int) -> int:
    """A process's memory, what it shares counted in parts; 0 for one that is gone."""
    try:
        found = PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) << 10 if found else 0


@contextmanager
def memory_peak(pid: int) -> Iterator[list[int]]:
    """All sizes that a process had during the block, from time to time and at its ends."""
    sizes, over = [pss_bytes(pid)], threading.Event()

    def watch() -> None:
        while not over.wait(MEMORY_EVERY_SECONDS):
            sizes.append(pss_bytes(pid))

    thread = threading.Thread(target=watch, name="memory-watch")
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()
        sizes.append(pss_bytes(pid))


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; NaN of none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan
