"""What /metrics tells of child processes."""

from server.metrics import ChildSnapshot, ChildState, Metrics
from server.usage import ProcessUsage
from tests.server.doubles import Scene, value_of
from tests.server.scenario import Play


def worker(state: ChildState = "up", started: float | None = 5.0, **usage: float) -> ChildSnapshot:
    return ChildSnapshot(role="worker", state=state, started=started, usage=ProcessUsage(**usage))  # type: ignore[arg-type]


def looked_at(metrics: Metrics, *children: ChildSnapshot) -> Metrics:
    metrics.set_server(waiting=(), children=children, body_bytes=0, ready=True)
    return metrics


def test_a_role_has_what_its_children_take_together_and_its_time_only_grows() -> None:
    metrics = Metrics("tiny", "1.2.3")

    def shown(*seconds: float) -> float:
        looked_at(metrics, *(worker(cpu_seconds=one, resident_bytes=100, open_files=7) for one in seconds))
        return value_of(metrics, 'child_cpu_seconds_total{role="worker"}')

    assert shown(1.0, 2.0) == 3.0 and shown(1.5, 2.0) == 3.5
    assert value_of(metrics, 'child_resident_memory_bytes{role="worker"}') == 200
    assert (
        value_of(metrics, 'child_open_fds{role="worker"}') == 14 and value_of(metrics, 'children{role="worker"}') == 2
    )


def test_each_child_is_in_one_state_and_its_process_has_a_start() -> None:
    metrics = looked_at(Metrics("tiny", "1.2.3"), worker("up", 7.5), worker("starting", None))
    states = {
        state: [value_of(metrics, f'child_state{{index="{i}",role="worker",state="{state}"}}') for i in (0, 1)]
        for state in ("starting", "up", "down", "failing")
    }
    assert states == {"starting": [0, 1], "up": [1, 0], "down": [0, 0], "failing": [0, 0]}
    assert value_of(metrics, 'child_start_time_seconds{index="0",role="worker"}') == 7.5
    assert 'child_start_time_seconds{index="1"' not in metrics.render().decode(), "it was never started"
    assert value_of(metrics, 'children_up{role="worker"}') == 1
    looked_at(metrics, worker("down", 7.5), worker("up", 9.0))
    assert value_of(metrics, 'child_state{index="0",role="worker",state="up"}') == 0
    assert value_of(metrics, 'child_start_time_seconds{index="1",role="worker"}') == 9.0


def test_a_supervised_child_says_how_it_is(play: Play) -> None:
    """Over its processes: one that is well, one that ends, one that starts, and one after another that never does."""

    async def scenario(scene: Scene) -> None:
        child = scene.workers.slots[0]

        def state() -> str:
            return child.snapshot.state

        first = child.snapshot
        assert (first.role, first.state) == ("worker", "up") and first.started is not None
        child.on_unavailable()
        assert state() == "down", "it still lives, and gets nothing any more"
        scene.kill_worker()
        assert state() == "down" and child.snapshot.started == first.started
        for ends in range(3):
            scene.start_worker(ready=False)
            assert state() == "starting", ends
            scene.kill_worker()
        assert state() == "failing"
        scene.start_worker(ready=False)
        assert state() == "failing", "until one is ready"
        scene.start_worker()
        last = child.snapshot
        assert last.state == "up" and last.started is not None and last.started > first.started
        assert scene.workers.text.snapshot.started is None, "nobody started it here"

    play(scenario)
