"""Buckets end where they should: in order, above nothing."""

from server.metrics import edges
from tests.server.tables import each_of

EDGES = {name: value for name, value in vars(edges).items() if isinstance(value, tuple)}


@each_of("name", EDGES)
def test_edges_rise(name: str) -> None:
    assert list(EDGES[name]) == sorted(set(EDGES[name])) and EDGES[name][0] > 0 and len(EDGES) == 8
