"""What /metrics tells of child processes."""

from server.metrics import Metrics
from server.usage import ProcessUsage
from tests.server.doubles import value_of


def test_a_role_has_what_its_children_take_together_and_its_time_only_grows() -> None:
    metrics = Metrics("tiny", "1.2.3")

    def shown(*seconds: float) -> float:
        children = [
            ("worker", True, ProcessUsage(cpu_seconds=one, resident_bytes=100, open_files=7)) for one in seconds
        ]
        metrics.set_server(waiting=(), children=children, body_bytes=0, ready=True)
        return value_of(metrics, 'child_cpu_seconds_total{role="worker"}')

    assert shown(1.0, 2.0) == 3.0 and shown(1.5, 2.0) == 3.5
    assert value_of(metrics, 'child_resident_memory_bytes{role="worker"}') == 200
    assert (
        value_of(metrics, 'child_open_fds{role="worker"}') == 14 and value_of(metrics, 'children{role="worker"}') == 2
    )
