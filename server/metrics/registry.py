"""A registry whose metrics have this server's prefix, and counters of what somebody else counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

PREFIX = "pixelferry:"


class PrefixedRegistry(CollectorRegistry):
    """Makes metrics and holds them."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter and histogram, which nobody plots
        super().__init__()
        self._seen: dict[Counter, float] = {}  # of what others count: how far each is told

    def grow(self, counter: Counter, total: float) -> None:
        """Of what somebody else counts."""
        seen = self._seen.get(counter, 0)
        if total != seen:  # most stay as they are from step to step
            counter.inc(max(0, total - seen))
            self._seen[counter] = total

    def begin_again(self, counter: Counter) -> None:
        """Whoever counts it has begun at zero."""
        self._seen.pop(counter, None)

    def counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self)

    def gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(PREFIX + name, text, labels, registry=self)

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(PREFIX + name, text, labels, buckets=buckets, registry=self)
