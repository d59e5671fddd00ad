"""What /metrics tells of the child processes: which are up, what they take, how often they were replaced."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from server.metrics.registry import PrefixedRegistry
from server.usage import ProcessUsage

# down: its process ended, or ends; failing: one after another ended before it was ready.
ChildState = Literal["starting", "up", "down", "failing"]
STATES: tuple[ChildState, ...] = get_args(ChildState)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSnapshot:
    """A child at one moment. Its place among those of its role stays over all its processes."""

    role: str
    state: ChildState
    started: float | None  # its latest process, by time.time(); None before the first
    usage: ProcessUsage


class ChildMetrics:
    """Fed by whoever keeps the children alive; the gauges are set when somebody looks."""

    def __init__(self, registry: PrefixedRegistry) -> None:
        self._registry = registry
        self._wanted = registry.gauge("children", "Child processes that there should be.", ("role",))
        self._up = registry.gauge("children_up", "Live child processes that are ready for work.", ("role",))
        self._states = registry.gauge(
            "child_state", "1 for the state that a child is in, 0 for the others.", ("role", "index", "state")
        )
        self._started = registry.gauge(
            "child_start_time_seconds", "When the latest process of a child was started, Unix time.", ("role", "index")
        )
        self._resident = registry.gauge("child_resident_memory_bytes", "Memory of the child processes.", ("role",))
        self._open = registry.gauge("child_open_fds", "Files that the child processes have open.", ("role",))
        self._cpu = registry.counter("child_cpu_seconds", "Processor time of all child processes so far.", ("role",))
        self._restarts = registry.counter("child_restarts", "Child processes that were started again.", ("role",))
        self._hangs = registry.counter("child_hangs", "Child processes that hung and were killed.", ("role",))
        self._renewals = registry.counter(
            "child_renewals", "Child processes that were replaced though well.", ("role",)
        )
        for role in ("worker", "text_worker", "picture_worker", "engine"):
            self._restarts.labels(role)
            self._hangs.labels(role)
        for role in ("worker", "text_worker", "picture_worker"):
            self._renewals.labels(role)

    def restart(self, role: str) -> None:
        """A child of that role ended and is started again."""
        self._restarts.labels(role).inc()

    def hang(self, role: str) -> None:
        """A child of that role hung."""
        self._hangs.labels(role).inc()

    def renewal(self, role: str) -> None:
        """A child of that role was replaced although it was well."""
        self._renewals.labels(role).inc()

    def look(self, children: Iterable[ChildSnapshot]) -> None:
        """At each that there should be; those of a role come in the same order every time."""
        of_role: defaultdict[str, list[ChildSnapshot]] = defaultdict(list)
        for child in children:
            of_role[child.role].append(child)
        for role, of in of_role.items():
            used = sum((child.usage for child in of), ProcessUsage())
            self._up.labels(role).set(sum(child.state == "up" for child in of))
            self._wanted.labels(role).set(len(of))
            self._resident.labels(role).set(used.resident_bytes)
            self._open.labels(role).set(used.open_files)
            self._registry.grow(self._cpu.labels(role), used.cpu_seconds)
            for index, child in enumerate(of):
                for state in STATES:
                    self._states.labels(role, index, state).set(child.state == state)
                if child.started is not None:
                    self._started.labels(role, index).set(child.started)
