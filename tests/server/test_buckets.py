"""Edges rise, and those that vLLM has are among them."""

import pytest

from server import buckets

EDGES = {name: edges for name, edges in vars(buckets).items() if name.isupper()}


@pytest.mark.parametrize("name", EDGES)
def test_edges_rise(name: str) -> None:
    assert list(EDGES[name]) == sorted(set(EDGES[name])) and EDGES[name][0] > 0
