"""Who is served next: whole days of jobs in a model of the workers whose clock the test turns."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from model.engine.scheduling.fair_shares import FairQueue
from tests.tables import each_of

VIDEO, PICTURE = 2.0, 0.05


@dataclass(eq=False)
class Served:
    """One job as it went."""

    name: str
    client: str
    expected: float  # seconds
    came: float
    begun: float = -1.0
    real: float = 0.0

    @property
    def waited(self) -> float:
        return self.begun - self.came


@dataclass
class Workers:
    """So many workers, that serve whomever FairQueue picks."""

    n: int = 1
    shares: FairQueue[Served] = field(default_factory=FairQueue)
    returns: str = ""  # a client that asks again soon after each of its jobs

    def serve(self, jobs: Iterable[tuple[float, str, float, float]], until: float = 1e9) -> list[Served]:
        """In the order in which they were begun, as far as that is before `until`.

        jobs: (when it comes, client, seconds that are expected, seconds that it takes).
        """
        coming = [
            Served(f"{client}{i}", client, expected, came, real=real)
            for i, (came, client, expected, real) in enumerate(sorted(jobs, key=lambda job: job[0]))
        ]
        begun: list[Served] = []
        running: list[tuple[float, int, Served]] = []  # by when they end
        while coming or running:
            if coming and (not running or coming[0].came < running[0][0]):
                now = coming[0].came
                self.shares.join(coming.pop(0))
            else:
                now, _, over = heapq.heappop(running)
                self.shares.done(over, over.real)
                if over.client == self.returns and now < until:
                    coming.insert(0, Served("again", self.returns, over.expected, now + 0.01, real=over.real))
            while len(running) < self.n and now < until and (job := self.shares.next(lambda job: True)):
                job.begun = now
                begun.append(job)
                heapq.heappush(running, (now + job.real, len(begun), job))
        return begun


def backlog(client: str, n: int, seconds: float, came: float = 0.0) -> list[tuple[float, str, float, float]]:
    return [(came, client, seconds, seconds)] * n


def waits(served: Iterable[Served], client: str) -> list[float]:
    return [job.waited for job in served if job.client == client]


@each_of("workers", [1, 2])
def test_a_picture_a_second_waits_for_what_runs_and_for_no_other_video(workers: int) -> None:
    jobs = backlog("a", 50, VIDEO) + [(float(i), "b", PICTURE, PICTURE) for i in range(1, 40)]
    served = Workers(workers).serve(jobs)
    assert max(waits(served, "b")) <= VIDEO
    last = max(job.begun + job.real for job in served)
    assert last == pytest.approx((50 * VIDEO + 39 * PICTURE) / workers, abs=VIDEO), "no worker was idle"


def given(served: Iterable[Served], since: float = 0.0) -> dict[str, float]:
    """Seconds of workers that each client got."""
    found: dict[str, float] = {}
    for job in served:
        if job.begun >= since:
            found[job.client] = found.get(job.client, 0.0) + job.real
    return found


def test_clients_with_work_for_hours_get_the_same_time_whatever_their_jobs_are() -> None:
    jobs = backlog("large", 20, 10.0) + backlog("small", 400, 0.5) + backlog("middle", 70, 3.0)
    found = given(Workers(2).serve(jobs, until=150.0)).values()
    assert max(found) - min(found) <= 20.0


def test_what_a_job_really_took_is_what_counts() -> None:
    """A client whose files say little and decode for long pays for it from its first one on."""
    jobs = [(0.0, "liar", 0.01, 5.0)] * 50 + backlog("honest", 200, 0.5)
    assert given(Workers().serve(jobs, until=100.0))["honest"] >= 45.0


def test_nobody_saves_up_time() -> None:
    """One comes after a pause, one after an hour of a picture now and then."""
    jobs = backlog("steady", 200, 1.0) + backlog("late", 100, 1.0, came=100.0)
    found = given(Workers().serve(jobs, until=200.0), since=100.0)
    assert found["late"] == pytest.approx(found["steady"], abs=2.0)
    jobs = backlog("steady", 200, 1.0) + [(0.3 + i, "rare", PICTURE, PICTURE) for i in range(100)]
    found = given(Workers().serve([*jobs, *backlog("rare", 100, 1.0, came=100.0)], until=160.0), since=100.0)
    assert found["rare"] == pytest.approx(found["steady"], abs=6.0)


def test_no_debt_is_forgotten_by_leaving() -> None:
    """It asks for one long job at a time, and is gone in between."""
    jobs = [job for i in range(5) for job in backlog(f"steady{i}", 120, 1.0)]
    found = given(Workers(returns="hog").serve([*jobs, (0.5, "hog", 30.0, 30.0)], until=600.0))
    assert found["hog"] <= 600.0 / 6 + 30.0


def test_ever_new_clients_do_not_keep_the_others_waiting_for_good() -> None:
    """They alone are as much as the worker can do, so more and more of them wait, and share with the old one."""
    jobs = backlog("old", 100, 1.0) + [(0.5 * i, f"new{i}", 0.5, 0.5) for i in range(400)]
    served = Workers().serve(jobs, until=200.0)
    begun = [job.begun for job in served if job.client == "old"]
    assert len(begun) >= 10 and begun[-1] >= 150.0


def test_a_thumbnail_does_not_wait_for_ten_videos_of_its_own_client() -> None:
    served = Workers().serve([*backlog("a", 10, VIDEO), (0.5, "a", PICTURE, PICTURE)])
    assert [job.expected for job in served[:3]] == [VIDEO, PICTURE, VIDEO]


def test_thumbnails_without_end_do_not_keep_a_video_waiting_for_good() -> None:
    """They have half of their client's time, and each waits for one video at most."""
    jobs = [*backlog("a", 20, VIDEO), *((0.05 * i, "a", PICTURE, PICTURE) for i in range(800))]
    served = Workers().serve(jobs, until=40.0)
    videos = sum(job.expected == VIDEO for job in served)
    assert 9 <= videos <= 11
    few = [*backlog("a", 20, VIDEO), *((1.0 * i, "a", PICTURE, PICTURE) for i in range(40))]
    pictures = [job.waited for job in Workers().serve(few) if job.expected == PICTURE]
    assert max(pictures) <= 2 * VIDEO


def test_equals_go_in_the_order_in_which_they_came() -> None:
    served = Workers(2).serve([*backlog("a", 4, VIDEO), (0.1, "a", VIDEO, VIDEO)])
    assert [job.name for job in served] == ["a0", "a1", "a2", "a3", "a4"]


def test_nothing_is_kept_of_clients_that_are_served() -> None:
    workers = Workers()
    workers.serve([(float(i), f"c{i}", PICTURE, PICTURE) for i in range(100)])
    assert not workers.shares._clocks._clocks
    busy = [*backlog("old", 200, 1.0), *((0.5 * i, f"c{i}", PICTURE, PICTURE) for i in range(200))]
    workers.serve(busy, until=100.0)
    assert len(workers.shares._clocks._clocks) < 20


def test_who_never_got_a_worker_is_charged_nothing() -> None:
    shares: FairQueue[Served] = FairQueue()
    gone, left, other = (Served(name, name, 5.0, 0.0) for name in ("a", "a", "b"))
    for job in (gone, left, other):
        shares.join(job)
    assert shares.next(lambda job: True) is gone
    shares.done(gone, 0.0)
    assert shares.next(lambda job: True) is left
    shares.done(left, 5.0)
    shares.done(other, None)
    assert not shares.waiting and not shares._clocks._clocks and shares.next(lambda job: True) is None


def test_whose_turn_it_is_among_those_that_fit() -> None:
    shares: FairQueue[Served] = FairQueue()
    jobs = [Served(str(i), "a", 5.0, 0.0) for i in range(3)]
    for job in jobs:
        shares.join(job)
    assert shares.next(lambda job: job.name == "3") is None
    assert shares.next(lambda job: job.name != "0") is jobs[1] and shares.waiting == [jobs[0], jobs[2]]


def test_a_client_that_left_begins_anew_with_its_smallest_job() -> None:
    shares: FairQueue[Served] = FairQueue()

    def begun() -> list[str]:
        """Of a long job and a short one behind it, in the order in which they are begun; then all are over."""
        for name, seconds in (("long", VIDEO), ("short", PICTURE)):
            shares.join(Served(name, "a", seconds, 0.0))
        found = [job for _ in range(2) if (job := shares.next(lambda job: True))]
        for job in found:
            shares.done(job, job.expected)
        return [job.name for job in found]

    other = Served("other", "b", VIDEO, 0.0)
    shares.join(other)  # somebody is there all the time
    assert shares.next(lambda job: True) is other
    assert begun() == begun() == ["short", "long"]
