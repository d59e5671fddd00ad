"""One page of several replicas, as Prometheus' own parser reads it, and what an ingress counts."""

import asyncio
import re
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deploy.ray.forwarding import Head, ReplicaFailed
from deploy.ray.metrics import IngressMetrics, merged
from server.requests.refusal import unavailable
from tests.deploy.ray.fake_replicas import COMMENT, EVENT, JSON, SSE, Exchange, FakeReplicas, Step, ingress_over

DEAD = ReplicaFailed("ActorDiedError")


def page(n: int) -> str:
    registry = CollectorRegistry()
    Counter("asked", "Help, with {braces}", ["kind"], registry=registry).labels('a "b"} c').inc(n)
    Histogram("seconds", "Time", registry=registry, buckets=(1, 2)).observe(n)
    text: str = generate_latest(registry).decode()
    return text


def test_every_sample_of_every_replica_stands_with_its_metric() -> None:
    whole = merged({"r1": page(1), "r2": page(5)})
    families = list(text_string_to_metric_families(whole))
    names = [family.name for family in families]
    assert len(set(names)) == len(names) and {"asked", "seconds"} <= set(names)
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }
    assert found["asked_total", ("kind", 'a "b"} c'), ("replica", "r2")] == 5
    assert found["seconds_bucket", ("le", "1.0"), ("replica", "r1")] == 1
    assert found["seconds_sum", ("replica", "r2")] == 5
    one = sum(len(family.samples) for family in text_string_to_metric_families(page(1)))
    assert len(found) == 2 * one
    assert whole.count("# HELP asked_total") == 1 and merged({}) == ""


def test_the_ingress_tells_what_it_does() -> None:
    metrics = IngressMetrics()
    metrics.retried()
    metrics.refused(unavailable("none", "no_replica"))
    with metrics.running():
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(metrics.page(3))
            for sample in family.samples
        }
    assert found["pixelferry:ingress_running"] == 1 and found["pixelferry:ingress_replicas"] == 3
    assert found["pixelferry:ingress_retries_total"] == 1 == found["pixelferry:ingress_refusals_total"]


def refusals(*scripts: tuple[str, list[Step]], n: int = 1, **given: Any) -> dict[str, float]:
    """What the ingress counts as ended by itself, by code, after `n` such requests."""

    async def asked() -> str:
        ingress = ingress_over(FakeReplicas(*scripts * n))
        for _ in range(n):
            await Exchange(**given).ask(ingress)
        page: str = (await Exchange("/metrics", "GET").ask(ingress)).body.decode()
        return page

    found = re.findall(r'^pixelferry:ingress_refusals_total\{code="(.+)"\} (.+)$', asyncio.run(asked()), re.MULTILINE)
    return {code: float(number) for code, number in found}


def test_what_it_ends_by_itself_is_counted_by_code() -> None:
    failing: list[Step] = [Head(503, JSON), b'{"error": {"code": "engine_died"}}']
    assert refusals(("", []), ("", []), n=2) == {"no_replica": 2}
    assert refusals(("r1", [DEAD]), ("r2", [DEAD])) == {"replica_died": 1}
    assert refusals(("r1", [Head(200, SSE), COMMENT, DEAD]), ("", [])) == {"no_replica": 1}, "an event behind comments"
    assert refusals(("r1", [Head(200, SSE), EVENT, DEAD])) == {"replica_died": 1}, "an event of a stream"
    assert refusals(("r1", [Head(200, JSON), b"{", DEAD])) == {"replica_died": 1}, "an answer that is cut"
    assert refusals(("r1", failing), ("r2", [DEAD])) == {}, "what a replica says is its own"
    assert refusals(("r1", [Head(200, JSON), b"{}"])) == {}
    assert refusals(("", []), path="/health/ready", method="GET") == {}, "a probe is no request"
