"""Windows over a grid of tokens, against a table worked by hand and against what windows are."""

import pytest
import torch

from model.net.windows import window_order
from tests.tables import each_of

pytestmark = pytest.mark.network

CPU = torch.device("cpu")


def test_ragged_edges_by_hand() -> None:
    # Windows of 2 x 2 over 3 rows of 5: two whole ones, one of 2 x 1, two of 1 x 2, one of 1 x 1.
    order, lengths = window_order(3, 5, 2, CPU)
    assert lengths == (4, 4, 2, 2, 2, 1)
    assert order.tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]


@each_of(("rows", "columns"), [(1, 1), (4, 4), (8, 8), (8, 9), (9, 8), (1, 23), (17, 13)])
def test_each_window_is_a_whole_square_of_the_grid(rows: int, columns: int) -> None:
    order, lengths = window_order(rows, columns, 4, CPU)
    assert sorted(order.tolist()) == list(range(rows * columns)) and sum(lengths) == rows * columns
    assert len(lengths) == -(-rows // 4) * -(-columns // 4) and min(lengths) >= 1
    assert list(lengths) == sorted(lengths, reverse=True)
    for window in order.split(lengths):
        squares = {(token // columns // 4, token % columns // 4) for token in window.tolist()}
        assert len(squares) == 1 and window.tolist() == sorted(window.tolist())
