"""Whether the server holds anything after a run that it did not hold before: a verdict for each thing that can leak."""

import math
import re
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}\n]*\})?[ \t]+(\S{1,40})", re.MULTILINE)
MIB = 1024 * 1024
MOST = 1e18


@dataclass(slots=True)
class Snapshot:
    """What was seen of the server at one moment."""

    at: float = 0.0  # seconds of the run
    metrics: dict[str, float] = field(default_factory=dict)  # empty: it has none
    files: int | None = None  # leased segments and path files in its shared memory; None: nobody looked


@dataclass(frozen=True, slots=True)
class LeakCheck:
    """One thing: `clean`, `leaked`, or `unknown` where the server does not tell."""

    name: str
    verdict: str
    says: str


@dataclass(frozen=True, slots=True)
class HeldGauge:
    """A gauge that must come back. slack: how much more each sample of it may say afterwards."""

    name: str
    metric: str
    label: str = ""
    slack: float = 0.0


HELD = (
    HeldGauge("requests in the engine", "num_requests_running"),
    HeldGauge("requests that wait", "num_requests_waiting"),
    HeldGauge("bytes of request bodies", "mm_inflight_bytes"),
    HeldGauge("leased shared memory, bytes", "shm_bytes", 'state="leased"'),
    HeldGauge("leased segments", "shm_segments", 'state="leased"'),
    HeldGauge("path files", "shm_path_files"),
    HeldGauge("KV cache in use, share", "kv_cache_usage_perc", slack=1e-9),
    HeldGauge("open descriptors", "process_open_fds", slack=4),
)
RESIDENT = "process_resident_memory_bytes"
CHILDREN, ENGINE = "child_resident_memory_bytes", '{role="engine"}'
STEPS = "iteration_tokens_count"  # of the engine: its work, of which a request has many or few
BODIES, INSIDE = "mm_inflight_bytes", ("num_requests_running", "num_requests_waiting")
# What a process keeps on purpose and says so, by its role, and bytes of each; a request takes 62 KiB beside its body.
KEPT = {ENGINE: {"mm_cache_bytes": 1}, "": {BODIES: 1, **dict.fromkeys(INSIDE, 64 * 1024)}}
WATCHED = frozenset({RESIDENT, CHILDREN, STEPS, "mm_cache_bytes", *(held.metric for held in HELD)})
BLOCKS, WARM_UP = 12, 4  # equal parts of the work of a run, and how many of these are its warm-up
LOOKS, SHORTEST, LONG = 2 * BLOCKS, 45.0, 200.0  # at least; seconds; seconds
LONGER = 1.25  # than what is just enough: a process grows between two looks, and while the looks are sent
GROWTH = 0.1  # of a process's memory behind the warm-up: less is none
SURELY = 2.365  # Student's t of BLOCKS - WARM_UP differences, 97.5 %


def parse_metrics(text: str) -> dict[str, float]:
    """Samples of Prometheus text by name and labels: `shm_bytes{state="leased"}`; a prefix with a colon is left out."""
    found: dict[str, float] = {}
    for name, labels, value in SAMPLE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if abs(number) <= MOST:  # nothing that a server counts: sums and plots of it would have no end
            found[name.rpartition(":")[2] + (labels or "")] = number
    return found


def watched(metrics: Mapping[str, float]) -> dict[str, float]:
    """What a timeline needs of them: a look each second for an hour must not fill the memory."""
    return {key: value for key, value in metrics.items() if key.partition("{")[0] in WATCHED}


def value_of(metrics: Mapping[str, float], metric: str, label: str = "") -> float | None:
    """The sum of all samples of a metric that have this label, such as `state="idle"`; None where there is none."""
    values = [value for key, value in metrics.items() if key.partition("{")[0] == metric and label in key]
    return sum(values) if values else None


def idle(snapshot: Snapshot) -> bool:
    """No request is in the server, as far as it tells."""
    return all(not value_of(snapshot.metrics, name) for name in (*INSIDE, BODIES))


def judge(timeline: Sequence[Snapshot], ends: Sequence[float]) -> list[LeakCheck]:
    """One finding for each thing, by looks of which the first and the last are at the idle server.

    ends: when each request of the last load ended, in order, in seconds of the run.
    """
    before, after = timeline[0], timeline[-1]
    if not after.metrics:
        return [LeakCheck("everything", "unknown", "the target shows no metrics")]
    counts = {one.name: [value_of(look.metrics, one.metric, one.label) for look in (before, after)] for one in HELD}
    counts |= {} if after.files is None else {"files in shared memory": [before.files, after.files]}
    slack = {one.name: one.slack * sum(key.partition("{")[0] == one.metric for key in after.metrics) for one in HELD}
    found = [came_back(name, first, last, slack.get(name, 0.0)) for name, (first, last) in counts.items()]
    roles = sorted(key.removeprefix(CHILDREN) for key in after.metrics if key.startswith(CHILDREN))
    return found + [memory(role, timeline, ends) for role in ("", *(roles or ["{role=?}"]))]


def came_back(name: str, before: float | None, after: float | None, slack: float) -> LeakCheck:
    """slack: how much more may be there."""
    if before is None or after is None:
        return LeakCheck(name, "unknown", "the server does not tell")
    return LeakCheck(name, "leaked" if after - before > slack else "clean", f"{after - before:g} more than before")


def memory(role: str, timeline: Sequence[Snapshot], ends: Sequence[float]) -> LeakCheck:
    """The memory of one process, less what it keeps on purpose, over the work of the last load.

    Honest memory grows, too: fast at first, then slower. A leak goes on with the work. So the slope behind the warm-up
    is told with its interval (Student's, over blocks of equal work). It is a leak where even its lower end is more than
    half of the slope within the warm-up and than GROWTH, which is more in less time than LONG: an engine's first
    minute may be all alike. role: labels of CHILDREN; empty: the server's own process.
    """
    key = CHILDREN + role if role else RESIDENT
    by_steps = role == ENGINE and value_of(timeline[-1].metrics, STEPS) is not None
    name = f"memory of process {role[7:-2]}" if role else "memory of the server process"
    if key not in timeline[-1].metrics:
        return LeakCheck(name, "unknown", "the server does not tell")
    kept, work, own, looked = 0.0, [], [], []  # of each look while the load went on: work done, bytes, its second
    for look in timeline:
        holds = KEPT.get(role, {}).items()
        kept = max(kept, sum((value_of(look.metrics, one) or 0.0) * each for one, each in holds))  # it is used again
        if key in look.metrics and ends and ends[0] <= look.at <= ends[-1]:
            work.append((value_of(look.metrics, STEPS) or 0.0) if by_steps else float(bisect(ends, look.at)))
            own.append(look.metrics[key] - kept)
            looked.append(look.at)
    if len(own) < LOOKS or work[0] == work[-1] or ends[-1] - ends[0] < SHORTEST:
        seconds, needs = needed(looked, own)
        grew = f"{(own[-1] - own[0]) / MIB:+.1f} MiB in {seconds:.0f} s" if own else "no look while the load went on"
        return LeakCheck(name, "unknown", f"too short a run to tell growth from a leak ({grew}): {needs}")
    places = np.linspace(work[0], work[-1], 5 * BLOCKS, endpoint=False)
    at = np.median(np.interp(places, work, own).reshape(BLOCKS, 5), axis=1)
    steps = np.diff(at)
    early, later = steps[: WARM_UP - 1].mean(), steps[WARM_UP - 1 :]
    slope, reach = later.mean(), SURELY * later.std(ddof=1) / math.sqrt(len(later))
    least = GROWTH * at[WARM_UP - 1] / len(later)
    unit, scale = "step" if by_steps else "request", BLOCKS / (work[-1] - work[0]) / MIB
    said = ", ".join(f"{value * scale:+.3f}" for value in (slope - reach, slope + reach))
    says = f"{slope * scale:+.3f} MiB a {unit} (95 %: {said}) behind the warm-up, {early * scale:+.3f} within it"
    if slope + reach <= least or later[-WARM_UP:].mean() <= early / 4:
        return LeakCheck(name, "clean", says)
    leaked = slope - reach > max(least * max(1.0, LONG / (ends[-1] - ends[0])), early / 2)
    if not leaked:
        says += f"; {needed(looked, own)[1]}"
    return LeakCheck(name, "leaked" if leaked else "unknown", says)


def needed(looked: Sequence[float], own: Sequence[float]) -> tuple[float, str]:
    """How long the load lasted, and how long it must last for a verdict. looked: seconds; own: bytes.

    A leak that goes on as the process grew in the second half is reported when it is GROWTH of the process, or more in
    less than LONG, behind the warm-up of a run.
    """
    seconds, half = (looked[-1] - looked[0], len(own) // 2) if own else (0.0, 0)
    rate = (own[-1] - own[half]) / max(looked[-1] - looked[half], 1e-9) if own else 0.0
    least = f"{SHORTEST:.0f} s of load and {LOOKS} looks (--sample) are the least"
    if len(own) < 4 or rate * LONG < GROWTH * own[-1] / 10:  # hardly grows: a run of the least length is clean
        return seconds, least
    share = GROWTH * max(own[0], 1.0) / (1 - WARM_UP / BLOCKS) / rate  # seconds in which it grows by GROWTH
    runs = max(SHORTEST, min(math.sqrt(share * LONG), LONG) if share < LONG else share) * LONGER
    return seconds, f"{least}; growth of {rate / MIB:.2f} MiB/s is judged a leak, or none, by {runs:.0f} s"


def verdict(findings: Sequence[LeakCheck]) -> str:
    """Of all of them: one leak is a leak, and clean is what is known of each."""
    verdicts = {finding.verdict for finding in findings}
    return "leaked" if "leaked" in verdicts else "clean" if verdicts == {"clean"} else "unknown"
