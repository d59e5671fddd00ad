"""The page of /metrics: those of all replicas, told apart by a label, and the ingress's own."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from server.requests.refusal import Refusal

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (.*)")
_SERIES = re.compile(r"_(?:bucket|sum|count|total|created)$")


class IngressMetrics:
    """Of one ingress: its requests, and what came of those that a replica failed."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._running = Gauge("pixelferry:ingress_running", "Requests that the ingress holds", registry=self._registry)
        self._retries = Counter(
            "pixelferry:ingress_retries", "Requests tried at a second replica", registry=self._registry
        )
        self._refusals = Counter(
            "pixelferry:ingress_refusals", "Requests that the ingress ended by itself", ["code"],
            registry=self._registry,
        )  # fmt: skip
        self._replicas = Gauge(
            "pixelferry:ingress_replicas", "Replicas whose metrics stand on this page", registry=self._registry
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._running.track_inprogress():
            yield

    def retried(self) -> None:
        self._retries.inc()

    def refused(self, refusal: Refusal) -> None:
        self._refusals.labels(refusal.code or refusal.kind).inc()

    def page(self, n_replicas: int) -> str:
        self._replicas.set(n_replicas)
        page: bytes = generate_latest(self._registry)
        return page.decode()


def merged(pages: Mapping[str, str]) -> str:
    """One page of several: all samples of a metric together, as the text format asks, each with its replica.

    pages: the text of each replica's page, by its id.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, page in pages.items():
        metric = ""
        for line in page.splitlines():
            if line.startswith("#"):
                metric = line.split(" ", 3)[2]
                known = heads.setdefault(metric, [])
                if line not in known:
                    known.append(line)
            elif match := _SAMPLE.fullmatch(line):
                name, labels, value = match.groups()
                family = metric if name.startswith(metric) and metric else _SERIES.sub("", name)
                told = f'replica="{replica}"' + (f",{labels}" if labels else "")
                samples.setdefault(family, []).append(f"{name}{{{told}}} {value}")
    lines = [line for metric in samples for line in (*heads.get(metric, ()), *samples[metric])]
    return "\n".join(lines) + "\n" if lines else ""
