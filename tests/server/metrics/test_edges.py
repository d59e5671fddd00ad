"""Buckets end where they should: in order, above nothing."""

import pytest

from server.metrics import edges

EDGES = {name: value for name, value in vars(edges).items() if isinstance(value, tuple)}


@pytest.mark.parametrize("name", EDGES)
def test_edges_rise(name: str) -> None:
    assert list(EDGES[name]) == sorted(set(EDGES[name])) and EDGES[name][0] > 0 and len(EDGES) == 8
