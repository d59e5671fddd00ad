"""What the harness judges: each thing that an attack may spoil is named, and nothing else."""

import os
from contextlib import nullcontext
from typing import Any

import pytest

from tests.hostile.measure import Attack, Report, Seen, beyond, judged, memory_peak, pss_bytes, quantile

pytestmark = pytest.mark.process

ATTACK = Attack(name="row 0", go=lambda server, killed: nullcontext(), memory_bytes=1 << 20)


def seen(**changed: Any) -> Seen:
    good: dict[str, Any] = {
        "chats": [(200, 0.1)] * 99 + [(200, 0.5)], "health": [(200, 0.01)] * 9,
        "peak_bytes": 1 << 20, "loop_seconds": 1.0,
    }  # fmt: skip
    return Seen(**(good | changed))


def test_what_an_attack_may_spoil() -> None:
    wrong = {}
    rows: list[tuple[dict[str, Any], str | None]] = [
        ({}, None),
        ({"chats": [(200, 0.1)] * 98 + [(200, 2.2)] * 2}, "p99 of a chat is 2.20 s, and 0.10 s"),
        ({"chats": [(200, 0.1)] * 99 + [(500, 0.1)]}, "1 chats of the second client got 500"),
        ({"chats": [(200, 0.1)] * 99 + [(0, 60.0)]}, "1 chats of the second client got 0"),
        ({"chats": [(503, 0.1)]}, "not one chat was answered"),
        ({"health": [(200, 0.01), (200, 0.26), (200, 0.26)]}, "the p99 of /health/live is 0.260 s"),
        ({"health": [(503, 0.01)]}, "/health/live did not always answer 200"),
        ({"peak_bytes": 2 << 20}, "held 2 MiB, more than 1"),
        ({"block_seconds": 0.26}, "the loop was blocked for 0.260 s of processor time"),
    ]
    for changed, problem in rows:
        problems = judged(seen(), seen(**changed), ATTACK)
        if not (problems == [] if problem is None else any(problem in found for found in problems)):
            wrong[str(changed)] = problems
    assert not wrong


def test_a_busy_machine_is_no_problem_where_the_clock_is_no_judge() -> None:
    """Whoever has no answer, and a loop that computes for long, are one all the same."""
    slow = seen(chats=[(200, 30.0)] * 9 + [(200, 59.0)], health=[(200, 9.0)] * 9)
    attack = Attack(name="row 2", go=ATTACK.go, memory_bytes=1 << 20, late=2.0)
    assert judged(seen(), slow, attack, clock=False) == [] != judged(seen(), slow, attack)
    bad = seen(chats=[(200, 0.1), (0, 60.0)], health=[(503, 0.1)], peak_bytes=2 << 20, block_seconds=1.0)
    assert len(judged(seen(), bad, attack, clock=False)) == 4


def test_a_status_that_a_row_allows_is_no_problem_and_not_in_the_p99() -> None:
    run = seen(chats=[(200, 0.1)] * 99 + [(503, 30.0)])
    attack = Attack(name="row 8", go=ATTACK.go, memory_bytes=1 << 20, may=frozenset({503}))
    assert judged(seen(), run, attack) == [] and run.p99 == 0.1


def test_a_row_with_a_deadline_is_judged_by_its_slowest_chat() -> None:
    attack = Attack(name="row 8", go=ATTACK.go, memory_bytes=1 << 20, may=frozenset({503}), deadline=12.0)
    assert judged(seen(), seen(chats=[(200, 8.0)] * 50 + [(503, 11.9)]), attack) == []
    (problem,) = judged(seen(), seen(chats=[(200, 0.1)] * 99 + [(503, 12.1)]), attack)
    assert problem == "a chat took 12.10 s, more than its deadline of 12"


def test_a_row_of_texts_is_judged_by_its_slowest_text() -> None:
    """Pictures may be later in it, by what others' jobs may keep one waiting."""
    attack = Attack(name="row 2", go=ATTACK.go, memory_bytes=1 << 20, late=2.0)
    assert judged(seen(), seen(chats=[(200, 0.1), (200, 6.9)] * 50), attack) == []
    (problem,) = judged(seen(), seen(chats=[(200, 0.1), (200, 30.0)] * 50), attack)
    assert problem.startswith("the p99 of pictures is 30.00 s")
    (problem,) = judged(seen(), seen(chats=[(200, 0.1), (200, 0.1)] * 49 + [(200, 2.2), (200, 0.1)]), attack)
    assert problem == "a text took 2.20 s, and 0.10 s without the attack"


def test_only_more_than_before_is_not_back() -> None:
    assert beyond({"files": 2.0, "fds": 9.0}, {"files": 3.0, "fds": 8.0}) == {"files": 3.0}


def test_quantiles_and_memory() -> None:
    assert quantile([float(i) for i in range(1, 101)], 0.99) == 99.0 and quantile([3.0], 0.99) == 3.0
    with memory_peak(os.getpid()) as sizes:
        pass
    assert len(sizes) == 2 and min(sizes) > 1 << 20 and pss_bytes(2**22 + 1) == 0


def test_the_table_has_a_row_for_each_run_and_says_what_was_not_held() -> None:
    text = str(Report(attack=ATTACK, quiet=seen(), runs=[seen(), seen()], problems=["run 1: it burned"]))
    assert text.count("\n") == 5 and "| row 0, run 2 | 100 | 100 x 200 | 0.100 | 0.100 | 0.500 | 0.100 | 10 |" in text
    assert text.endswith("- NOT HELD: run 1: it burned")
