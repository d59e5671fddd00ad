"""Records and results to judge, written by hand or drawn from a seed."""

import random
from collections.abc import Sequence

from server.loadtest.results.capacity import FOUND, KEPT, MISSED, LoadCapacity, LoadVerdict
from server.loadtest.results.hit_rates import hit_rates
from server.loadtest.results.leaks import Snapshot, judge, verdict
from server.loadtest.results.measures import Record, summarise
from server.loadtest.results.result import RunResult, StepResult

IDLE = {
    "num_requests_running": 0.0, 'num_requests_waiting{place="worker"}': 0.0, "mm_inflight_bytes": 0.0,
    'shm_bytes{state="leased"}': 0.0, 'shm_bytes{state="idle"}': 4096.0, 'shm_segments{state="leased"}': 0.0,
    "shm_path_files": 0.0, "kv_cache_usage_perc": 0.0, "process_open_fds": 20.0,
    "process_resident_memory_bytes": 80e6, 'child_resident_memory_bytes{role="engine"}': 500e6, "mm_cache_bytes": 0.0,
}  # fmt: skip


CAPACITY = LoadCapacity(
    objective="ttft.p99<=1s", bound=1.0, allowed=0.01, low=7.1, high=8.8, verdict=FOUND,
    says="kept at 7.1 req/s, missed at 8.8",
    loads=[
        LoadVerdict(load=7.1, repeats=8, requests=4000, beyond=5, share_low=0.0, share_high=0.004, percentile=0.64,
                    verdict=KEPT),
        LoadVerdict(load=8.8, repeats=4, requests=1500, beyond=90, share_low=0.03, share_high=0.1, percentile=1.4,
                    verdict=MISSED),
    ],
)  # fmt: skip


def drawn(n: int, seed: int = 0, *, slower: float = 1.0, kind: str = "text") -> list[Record]:
    """Answers at 10 a second with log-normal times, some `slower` times as long."""
    rng = random.Random(seed)
    records = []
    for index in range(n):
        sent = index / 10
        first = sent + 0.1 * rng.lognormvariate(0, 0.3) * slower
        gaps = [0.02 * rng.lognormvariate(0, 0.2) * slower for _ in range(7)]
        last = first + sum(gaps)
        records.append(
            Record(
                index=index,
                kind=kind,
                bucket="x",
                due=sent,
                sent=sent,
                first=first,
                last=last,
                ended=last,
                events=8,
                gaps=gaps,
                prompt_tokens=12,
                output_tokens=8,
                status=200,
                finish="length",
                stages={"prepare": 0.01, "prepare.image.decode": 0.004, "queue": 0.001, "prefill": 0.08, "decode": 0.1},
            )  # fmt: skip
        )
    return records


def result_of(
    steps: Sequence[tuple[str, float, list[Record]]], objectives: dict[str, float] | None = None
) -> RunResult:
    """A run of these steps whose server came back to what it was."""
    kept = [
        StepResult(label=label, load=load, summary=summarise(records, objectives or {}), records=records)
        for label, load, records in steps
    ]
    before, after = Snapshot(0.0, dict(IDLE)), Snapshot(10.0, dict(IDLE))
    counted = Snapshot(10.0, {"prefix_cache_queries_total": 240.0, "prefix_cache_hits_total": 60.0})
    findings = judge([before, after], [])[:-2]  # what tells of its memory needs a longer run
    return RunResult(
        version="1", began="2026-11-22T08:00:00+00:00", target="http://x", model="m", options={"rate": "10"},
        objectives=objectives or {}, steps=kept, findings=findings, leak=verdict(findings), timeline=[before, after],
        hit_rates=hit_rates(Snapshot(0.0, dict.fromkeys(counted.metrics, 0.0)), counted),
    )  # fmt: skip
