"""What /metrics tells of the child processes: which are up, what they take, how often they were replaced."""

from collections import defaultdict
from collections.abc import Iterable

from server.metrics.registry import PrefixedRegistry
from server.usage import ProcessUsage


class ChildMetrics:
    """Fed by whoever keeps the children alive; the gauges are set when somebody looks."""

    def __init__(self, registry: PrefixedRegistry) -> None:
        self._registry = registry
        self._wanted = registry.gauge("children", "Child processes that there should be.", ("role",))
        self._up = registry.gauge("children_up", "Live child processes that are ready for work.", ("role",))
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

    def look(self, children: Iterable[tuple[str, bool, ProcessUsage]]) -> None:
        """Of each that there should be its role, whether it is up, its usage."""
        of_role: defaultdict[str, list[tuple[bool, ProcessUsage]]] = defaultdict(list)
        for role, up, usage in children:
            of_role[role].append((up, usage))
        for role, of in of_role.items():
            used = sum((usage for _, usage in of), ProcessUsage())
            self._up.labels(role).set(sum(up for up, _ in of))
            self._wanted.labels(role).set(len(of))
            self._resident.labels(role).set(used.resident_bytes)
            self._open.labels(role).set(used.open_files)
            self._registry.grow(self._cpu.labels(role), used.cpu_seconds)
