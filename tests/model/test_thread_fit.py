"""The number of threads: chosen at start, and again while the machine is busy; one on each core."""

import os
import threading
from collections.abc import Callable

import pytest

from model import thread_fit as threads
from model.thread_fit import Team, ThreadFit, fit_at_start
from tests.tables import each_of

QUIET = {2: 0.014, 1: 0.020}
BESIDE = {2: 0.050, 1: 0.021}


@each_of(
    ("one", "many", "most", "chosen"),
    [(1e-3, 2e-3, 2, 1), (2.1e-3, 2e-3, 2, 1), (4e-3, 2e-3, 2, 2), (1.0, 0.05, 4, 4)],
)
def test_one_thread_at_start_where_more_are_not_faster(one: float, many: float, most: int, chosen: int) -> None:
    """The fastest step counts, so that one that was held up by something else does not."""
    used: list[int] = []
    steps: list[int] = []

    def decode() -> list[float]:
        steps.append(used[-1])
        return [9.0, one if used[-1] == 1 else many, 8.0]

    found, words = fit_at_start(most, used.append, decode)
    assert (found, used[-1]) == (chosen, chosen) and words.startswith(f"{chosen}: ")
    assert (1 in steps) == (many < threads.SLOW_SECONDS), "a slow network is not tried with one"


class Decoding:
    """Steps of a network whose times are given, and which number of threads took each."""

    def __init__(self) -> None:
        self.used: list[int] = [2]
        self.fit = ThreadFit(2, self.used.append)

    def steps(self, n: int, seconds: dict[int, float], noise: Callable[[int], float] = lambda i: 1.0) -> list[int]:
        took = []
        for i in range(n):
            took.append(self.used[-1])
            self.fit.decoded(seconds[self.used[-1]] * noise(i))
        return took


def test_all_threads_stay_on_a_quiet_machine() -> None:
    took = Decoding().steps(4000, QUIET, noise=lambda i: 2.0 if i % 7 == 0 else 1.0)
    assert took.count(1) <= 0.01 * len(took), "comparisons cost less than a hundredth of the steps"
    assert 1 in took, "and there are some"


def test_one_thread_while_a_core_is_busy_and_all_again_after_it() -> None:
    decoding = Decoding()
    decoding.steps(1000, QUIET)
    beside = decoding.steps(1000, BESIDE)
    first = next(i for i in range(len(beside)) if set(beside[i : i + 10]) == {1})
    assert first <= 2 * threads.RECENT + threads.TRIAL, "found at once, not at the next comparison that was due"
    assert beside[first:].count(2) <= 0.12 * len(beside)
    after = decoding.steps(200, QUIET)
    assert set(after[threads.SHORTEST + threads.TRIAL + 1 : 2 * threads.SHORTEST]) == {2}


def test_steps_that_grow_longer_by_themselves_keep_their_threads() -> None:
    """A longer context, more sequences: slower with any number of threads."""
    decoding = Decoding()
    decoding.steps(500, QUIET)
    took = decoding.steps(500, {n: 3 * seconds for n, seconds in QUIET.items()})
    assert decoding.fit.threads == 2 and took.count(1) < 0.05 * len(took)


def test_each_thread_has_a_core_of_its_own_while_there_are_as_many() -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) == 1:
        pytest.skip("one core")
    found: dict[str, list[set[int]]] = {}

    def compute() -> None:  # in a thread of its own: what is bound ends with it
        team = Team(len(cores))
        before = {int(task) for task in os.listdir("/proc/self/task")}
        mine = [threading.get_native_id(), *(task for task in team._others if task in before)]

        def places() -> list[set[int]]:
            return [os.sched_getaffinity(task) for task in mine]

        found["at first"] = places()
        team.bind()
        found["bound"] = places()
        team.use(1)
        found["one"] = places()[:1]
        few = Team(1)
        few.bind()
        found["few"] = places()[:1]

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert found["at first"] == [cores] * len(cores)
    assert all(len(place) == 1 for place in found["bound"]) and set().union(*found["bound"]) == cores
    assert found["one"] == [cores], "one thread goes where there is room"
    assert found["few"] == [cores], "fewer threads than cores are not bound"
