"""When the client says that it was the bottleneck."""

import pytest

from server.loadtest.results.client_load import ClientLoad, ClientSample, client_load


def samples(cpu: float = 0.1, starved: float = 0.0) -> list[ClientSample]:
    return [ClientSample(float(second), cpu, 0.001, starved, 1000 + second) for second in range(4)]


def test_an_easy_run_has_no_warning() -> None:
    load = client_load(samples(), [0.001] * 100, [0.001] * 100)
    assert load.warnings == []
    assert load.cpu_mean == pytest.approx(0.1)
    assert (load.resident_first, load.resident_last) == (1000, 1003)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (client_load(samples(cpu=0.95), [0.001], []), "used 95% of a core"),
        (client_load(samples(), [0.001] * 90 + [0.05] * 10, []), "loop was up to 50 ms late"),
        (client_load(samples(), [0.001], [0.0] * 90 + [0.3] * 10), "left up to 300 ms after"),
        (client_load(samples(starved=0.4), [0.001], []), "had no core 40% of the time"),
    ],
)
def test_each_way_to_be_slow_is_said(load: ClientLoad, said: str) -> None:
    warnings = load.warnings
    assert len(warnings) == 1 and said in warnings[0]


def test_a_run_too_short_for_a_sample_has_no_figures() -> None:
    load = client_load([], [], [])
    assert (load.cpu_mean, load.lag_p99, load.warnings) == (0.0, 0.0, [])
