"""However many lines are asked for, a few are said, and the next one tells how many were not."""

from server.logs.bounded import Bound


def test_a_window_has_so_many_lines() -> None:
    now = [100.0]
    bound = Bound(2, 60.0, lambda: now[0])
    assert [bound.take() for _ in range(5)] == [0, 0, None, None, None]
    now[0] += 59.9
    assert bound.take() is None
    now[0] += 0.1
    assert [bound.take() for _ in range(3)] == [4, 0, None]
    now[0] += 6000
    assert bound.take() == 1
