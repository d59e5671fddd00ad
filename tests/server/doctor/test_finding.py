"""The four kinds of finding."""

from server.doctor.finding import Finding, fail, ok, skip, warn
from tests.server.tables import each_of


@each_of(
    ("made", "verdict", "remedy"),
    [
        (ok("a", "b"), "ok", ""),
        (skip("a", "b"), "skip", ""),
        (warn("a", "b", "c"), "warn", "c"),
        (fail("a", "b", "c"), "fail", "c"),
    ],
)
def test_kinds(made: Finding, verdict: str, remedy: str) -> None:
    assert (made.check, made.verdict, made.found, made.remedy) == ("a", verdict, "b", remedy)
