"""One page of several replicas, as Prometheus' own parser reads it."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deploy.ray.metrics import IngressMetrics, merged
from server.requests.refusal import unavailable


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
