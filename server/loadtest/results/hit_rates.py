"""What share of a run's work the server had in its caches, by its own counters before and after."""

from dataclasses import dataclass

from server.loadtest.results.leaks import Snapshot, value_of

COUNTERS = {"tokens": "prefix_cache", "media": "mm_cache"}  # Pixelferry and vLLM name them alike


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRate:
    """Of the tokens of prompts, or of media."""

    queries: float | None = None  # looked for; None: the server does not tell
    hits: float | None = None  # of these, in the cache
    rate: float | None = None  # None also where nothing was looked for
    says: str = "unknown"


def hit_rates(before: Snapshot, after: Snapshot) -> dict[str, HitRate]:
    """One for each counter, of what came between two looks."""
    return {name: _between(before, after, counter) for name, counter in COUNTERS.items()}


def _between(before: Snapshot, after: Snapshot, counter: str) -> HitRate:
    grown = []
    for name in (f"{counter}_queries_total", f"{counter}_hits_total"):
        first, last = value_of(before.metrics, name), value_of(after.metrics, name)
        grown.append(-1.0 if first is None or last is None else last - first)
    queries, hits = grown
    if not 0 <= hits <= queries:  # also where a server began again, or counts what cannot be
        return HitRate()
    if not queries:
        return HitRate(queries=queries, hits=hits, says="nothing was looked for")
    rate = hits / queries
    return HitRate(queries=queries, hits=hits, rate=rate, says=f"{rate:.1%} ({hits:,.0f} of {queries:,.0f})")
