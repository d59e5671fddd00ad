"""A fault that follows from another stands below it and names the first of the chain."""

from server.doctor.causes import with_causes
from server.doctor.finding import Finding, fail, ok, warn


def chain(*found: Finding) -> list[tuple[str, str]]:
    return [(one.check, one.follows) for one in with_causes(found)]


def broken(*checks: str) -> list[Finding]:
    return [fail(check, "broken", "mend it") for check in checks]


def test_what_follows_stands_below_its_root() -> None:
    """The runtime is not loaded for want of libraries, which another CANN hides."""
    found = [*broken("CANN paths"), ok("health", "OK"), *broken("CANN libraries", "versions", "chip")]
    assert chain(*found) == [
        ("CANN paths", ""), ("CANN libraries", "CANN paths"), ("chip", "CANN paths"), ("health", ""), ("versions", ""),
    ]  # fmt: skip


def test_each_root_has_its_own() -> None:
    assert chain(*broken("driver", "CANN", "NPUs", "CANN parts")) == [
        ("driver", ""), ("NPUs", "driver"), ("CANN", ""), ("CANN parts", "CANN"),
    ]  # fmt: skip


def test_a_warning_is_no_cause_and_has_none() -> None:
    old, memory = warn("driver", "old", "Update it."), warn("NPU memory", "little", "End something.")
    assert chain(old, *broken("NPUs"), memory) == [("driver", ""), ("NPUs", ""), ("NPU memory", "")]
    assert chain(*broken("driver"), warn("chip", "strange", "Look.")) == [("driver", ""), ("chip", "")]


def test_nothing_is_lost_and_remedies_stay() -> None:
    found = broken("chip", "CANN", "driver", "rights", "operators")
    assert sorted(one.check for one in with_causes(found)) == sorted(one.check for one in found)
    assert all(one.remedy for one in with_causes(found))
