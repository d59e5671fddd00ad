"""Hit rates: differences of counters, and what cannot be known is not guessed."""

from server.loadtest.results.hit_rates import hit_rates
from server.loadtest.results.leaks import Snapshot, parse_metrics
from tests.server.tables import each_of

QUERIES, HITS = "prefix_cache_queries_total", "prefix_cache_hits_total"


def says(before: dict[str, float], after: dict[str, float]) -> str:
    return hit_rates(Snapshot(0.0, before), Snapshot(1.0, after))["tokens"].says


@each_of(
    ("before", "after"),
    [
        ({}, {QUERIES: 5.0, HITS: 1.0}),
        ({QUERIES: 5.0, HITS: 1.0}, {}),
        ({QUERIES: 5.0}, {QUERIES: 9.0}),
        ({QUERIES: 50.0, HITS: 9.0}, {QUERIES: 60.0, HITS: 1.0}),  # it began again meanwhile
        ({QUERIES: 5.0, HITS: 1.0}, {QUERIES: 6.0, HITS: 9.0}),
    ],
)
def test_what_counters_do_not_tell_is_unknown(before: dict[str, float], after: dict[str, float]) -> None:
    assert says(before, after) == "unknown"


def test_servers_with_several_engines_are_summed() -> None:
    text = "\n".join(f'vllm:{name}{{engine="{n}"}} 2e3' for name in (QUERIES, HITS) for n in (0, 1))
    assert says({QUERIES: 0.0, HITS: 1000.0}, parse_metrics(text)) == "75.0% (3,000 of 4,000)"
