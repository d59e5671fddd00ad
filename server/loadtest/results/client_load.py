"""Whether this client was the bottleneck: its processor time, how late its loop and its requests were."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from server.loadtest.results.measures import percentile

BUSY = 0.8  # of one core: beyond it answers wait to be read
LATE = 0.02  # seconds: a delay that shows in latencies
STARVED = 0.1  # share of the time


@dataclass(frozen=True, slots=True)
class ClientSample:
    """What the client was like during about a second."""

    at: float  # seconds of the run
    cpu: float  # cores
    lag_p99: float  # seconds that its loop came too late
    starved: float  # share of the time in which it was ready to run and had no core
    resident: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """The client over the whole run. `warnings` say why figures are not the server's alone."""

    cpu_mean: float = 0.0
    cpu_max: float = 0.0
    lag_p50: float = 0.0
    lag_p99: float = 0.0
    lag_max: float = 0.0
    wait_p99: float = 0.0
    starved: float = 0.0
    resident_first: int = 0
    resident_last: int = 0
    warnings: list[str] = field(default_factory=list)
    samples: list[ClientSample] = field(default_factory=list)


def client_load(samples: Sequence[ClientSample], lags: Sequence[float], waits: Sequence[float]) -> ClientLoad:
    """lags: how late each tick of the loop was; waits: how late requests left that only this client held back."""
    n = len(samples) or 1
    ordered = sorted(lags) or [0.0]
    load = ClientLoad(
        cpu_mean=sum(sample.cpu for sample in samples) / n,
        cpu_max=max((sample.cpu for sample in samples), default=0.0),
        lag_p50=percentile(ordered, 50),
        lag_p99=percentile(ordered, 99),
        lag_max=ordered[-1],
        wait_p99=percentile(sorted(waits), 99) if waits else 0.0,
        starved=sum(sample.starved for sample in samples) / n,
        resident_first=samples[0].resident if samples else 0,
        resident_last=samples[-1].resident if samples else 0,
        samples=list(samples),
    )
    load.warnings.extend(warnings_of(load))
    return load


def warnings_of(load: ClientLoad) -> list[str]:
    """Each thing that makes the client's own slowness a part of the latencies."""
    found = []
    if load.cpu_mean > BUSY:
        found.append(f"the client used {load.cpu_mean:.0%} of a core: it can hardly send or read faster")
    if load.lag_p99 > LATE:
        found.append(f"the client's loop was up to {load.lag_p99 * 1000:.0f} ms late (p99), and so are latencies")
    if load.wait_p99 > LATE:
        found.append(f"requests left up to {load.wait_p99 * 1000:.0f} ms after they were due (p99)")
    if load.starved > STARVED:
        found.append(f"the client was ready to run and had no core {load.starved:.0%} of the time")
    return found
