"""Sentences that both hubs share."""

from server.hub.client import not_installed, one_line
from tests.tables import each_of


@each_of(
    ("error", "line"), [(ValueError("\n  first \nsecond"), "first"), (ValueError(), "ValueError"), (OSError("x"), "x")]
)
def test_the_first_line_of_an_error(error: Exception, line: str) -> None:
    assert one_line(error) == line


def test_a_missing_client_names_its_extra() -> None:
    text = str(not_installed("modelscope_hub", "modelscope"))
    assert "needs modelscope_hub" in text and "[modelscope]'`, or give a directory" in text
