"""Lines that anybody can cause: so many in a window, and the others counted."""

from server.logs.line_bound import LINES, SECONDS, LineBound


def test_a_window_has_so_many_lines() -> None:
    now = [100.0]
    bound = LineBound(lambda: now[0])
    assert [bound.take() for _ in range(LINES + 3)] == [""] * LINES + [None] * 3
    now[0] += SECONDS - 0.1
    assert bound.take() is None
    now[0] += 0.1
    assert [bound.take() for _ in range(LINES + 1)] == [
        " (4 such lines were left out before)",
        *[""] * (LINES - 1),
        None,
    ]
    now[0] += 100 * SECONDS
    assert bound.take() == " (1 such lines were left out before)"
