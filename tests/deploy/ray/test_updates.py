"""The service while it is made larger, smaller and newer: no client notices, but that an answer may wait."""

import time

import pytest

from tests.deploy.ray.asking import Asking, answered, chat
from tests.deploy.ray.cluster import Cluster
from tests.e2e.running import until

pytestmark = pytest.mark.ray
LOAD = (chat("hello"), chat("What is 2 + 2?"), chat("good morning", stream=True))
# Of this the text is not compared: behind the end that it does not take, rounding in a batch decides.
LONG = chat("tell me of ships", stream=True, max_tokens=400, ignore_eos=True)
LONG_SECONDS = 600.0


@pytest.mark.timeout(1800)
def test_a_service_that_changes_loses_no_answer(service: Cluster) -> None:
    changed(service, 0.0)


@pytest.mark.long
@pytest.mark.timeout(2 * LONG_SECONDS + 1800)
def test_ten_minutes_of_changes(service: Cluster) -> None:
    assert changed(service, LONG_SECONDS) > 1


def changed(cluster: Cluster, seconds: float) -> int:
    """Three replicas, one, and two of a new version, for so long; how many times.

    Prints how long each took, from the moment that the changed file is handed on.
    """
    cluster.start_missing()
    expected = [answered(cluster.http, body) for body in LOAD]
    assert {one.status for one in expected} == {200}
    ends, rounds = time.monotonic() + seconds, 0
    with Asking([*LOAD, LONG], pause=0.3) as asking:
        while not rounds or time.monotonic() < ends:
            for n_replicas in (3, 1, 2):
                old = cluster.replicas() if n_replicas == 2 else set()
                took = change(cluster, n_replicas, f"{8 + rounds + (n_replicas == 2)}", old)
                print(f"round {rounds}: {n_replicas} replicas{' anew' if old else ''} after {took:.1f} s")
            rounds += 1
            assert asking.all_have(1)
        asking.stop()
    print(f"{sum(map(len, asking.answers))} answers, the slowest after {asking.slowest:.1f} s")
    *short, long = asking.answers
    for answers, right in zip(short, expected, strict=True):
        assert len(answers) > 3 and set(answers) == {right}
    assert len(long) > 3 and {(one.status, one.end) for one in long} == {(200, "length")}
    return rounds


def change(cluster: Cluster, n_replicas: int, version: str, old: set[str]) -> float:
    """Until so many replicas answer, none of them an old one, and no other server runs; in seconds."""

    def there() -> bool:
        names = cluster.replicas()
        return len(names) == n_replicas and not names & old and set(cluster.servers()) == names

    began = time.monotonic()
    cluster.deploy(n_replicas, "--max-n", version)  # any flag makes a new version
    until(f"{n_replicas} replicas answer", there, 400, 0.5, lambda: f"{cluster.replicas()} of {cluster.servers()}")
    return time.monotonic() - began
