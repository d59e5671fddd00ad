"""Whether the server holds anything after a run that it did not hold before: a verdict for each thing that can leak."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}\n]*\})?[ \t]+(\S{1,40})", re.MULTILINE)
MIB = 1024 * 1024
MOST = 1e18


@dataclass(slots=True)
class Snapshot:
    """What was seen of the server at one moment."""

    at: float = 0.0  # seconds of the run
    metrics: dict[str, float] = field(default_factory=dict)  # empty: it has none
    files: int | None = None  # leased segments and path files in its shared memory; None: nobody looked
    file_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LeakCheck:
    """One thing: `clean`, `leaked`, or `unknown` where the server does not tell."""

    name: str
    verdict: str
    before: float | None
    after: float | None
    says: str


@dataclass(frozen=True, slots=True)
class HeldGauge:
    """A gauge that must come back. slack: how much more may be there afterwards."""

    name: str
    metric: str
    label: str = ""
    slack: float = 0.0
    ours: bool = True  # other servers do not have it


HELD = (
    HeldGauge("requests in the engine", "num_requests_running", ours=False),
    HeldGauge("requests that wait", "num_requests_waiting", ours=False),
    HeldGauge("bytes of request bodies", "mm_inflight_bytes"),
    HeldGauge("leased shared memory, bytes", "shm_bytes", 'state="leased"'),
    HeldGauge("leased segments", "shm_segments", 'state="leased"'),
    HeldGauge("path files", "shm_path_files"),
    HeldGauge("KV cache in use, share", "kv_cache_usage_perc", slack=1e-9),
    HeldGauge("open descriptors", "process_open_fds", slack=4, ours=False),
)
RESIDENT = "process_resident_memory_bytes"
WATCHED = frozenset({RESIDENT, *(held.metric for held in HELD)})  # what is kept of each look while a run goes on


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
    names = ("num_requests_running", "num_requests_waiting", "mm_inflight_bytes")
    return all(not value_of(snapshot.metrics, name) for name in names)


def judge(before: Snapshot, after: Snapshot, timeline: Sequence[Snapshot], resident_slack: float) -> list[LeakCheck]:
    """One finding for each thing. resident_slack: bytes that the server's memory may grow by."""
    if not after.metrics:
        return [LeakCheck("everything", "unknown", None, None, "the target shows no metrics")]
    found = []
    for held in HELD:
        first, last = (value_of(snapshot.metrics, held.metric, held.label) for snapshot in (before, after))
        if first is None or last is None:
            if held.ours:
                found.append(LeakCheck(held.name, "unknown", first, last, f"no metric {held.metric}"))
            continue
        more = last - first
        found.append(_check(held.name, first, last, more > held.slack, f"{more:g} more than before"))
    if before.files is not None and after.files is not None:
        more = after.files - before.files
        says = f"{more} files, {after.file_bytes or 0:,} bytes"
        found.append(_check("files in shared memory", before.files, after.files, more > 0, says))
    found.append(resident(before, after, timeline, resident_slack))
    return found


def _check(name: str, first: float, last: float, leaked: bool, says: str, clean: str = "came back") -> LeakCheck:
    return LeakCheck(name, "leaked", first, last, says) if leaked else LeakCheck(name, "clean", first, last, clean)


def resident(before: Snapshot, after: Snapshot, timeline: Sequence[Snapshot], slack: float) -> LeakCheck:
    """The server process's memory. It may grow at first; what counts is how much it grew in the second half."""
    name, metric = "memory of the server process, bytes", RESIDENT
    first, last = value_of(before.metrics, metric), value_of(after.metrics, metric)
    if first is None or last is None:
        return LeakCheck(name, "unknown", first, last, f"no metric {metric}")
    half = [one for one in timeline if one.at <= (before.at + after.at) / 2]
    middle = next((value for one in reversed(half) if (value := value_of(one.metrics, metric)) is not None), first)
    grown = last - middle
    says = f"{(last - first) / MIB:+.1f} MiB in all, {grown / MIB:+.1f} in the second half"
    return _check(name, first, last, grown > slack, says, clean=says)


def verdict(findings: Sequence[LeakCheck]) -> str:
    """Of all of them: one leak is a leak; where nothing could be seen nothing is said."""
    verdicts = {finding.verdict for finding in findings}
    return "leaked" if "leaked" in verdicts else "clean" if "clean" in verdicts else "unknown"
