"""Refusals as HTTP says them, and one form of body for whatever else ends a request."""

from server.http.errors import param_of


def test_paths_of_fields() -> None:
    assert param_of(("messages", 1, "content", 3)) == "messages[1].content[3]"
    assert param_of(("parameters", "top_p")) == "parameters.top_p"
    assert param_of(()) == ""
