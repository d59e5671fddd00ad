"""Names have the prefix; what somebody else counts only grows, also where its counter begins again."""

from prometheus_client import generate_latest

from server.metrics.registry import PREFIX, PrefixedRegistry


def test_names_have_the_prefix() -> None:
    registry = PrefixedRegistry()
    registry.counter("a", "A.", ("role",)).labels("x").inc()
    registry.gauge("b", "B.").set(2)
    registry.histogram("c", "C.", (1.0, 2.0)).observe(1.5)
    lines = {line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")}
    assert {'pixelferry:a_total{role="x"} 1.0', "pixelferry:b 2.0", 'pixelferry:c_bucket{le="2.0"} 1.0'} <= lines
    assert all(line.startswith(PREFIX) and "_created" not in line for line in lines)


def test_what_others_count_only_grows() -> None:
    registry = PrefixedRegistry()
    counter = registry.counter("a", "A.")
    found = []
    for total in (2, 2, 5, 3):
        registry.grow(counter, total)
        found.append(registry.get_sample_value("pixelferry:a_total"))
    registry.begin_again(counter)
    registry.grow(counter, 4)
    assert [*found, registry.get_sample_value("pixelferry:a_total")] == [2, 2, 5, 5, 9]
