"""Requests out of a file."""

from pathlib import Path

import pytest

from server.loadtest.traffic.arrivals import TraceLine
from server.loadtest.traffic.request_list import RequestList


def test_requests_come_in_the_order_of_their_file_and_round_again(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    (tmp_path / "list.jsonl").write_text(
        '{"prompt": "one", "output_tokens": 5}\n\n'
        '{"text": "two", "max_tokens": 6, "expect": "2", "media": ["a.png", "a.png"]}\n'
    )
    listed = RequestList(tmp_path / "list.jsonl", 9)
    first, second, third = (listed.make(index) for index in range(3))
    assert (first.prompt, first.max_tokens, first.kind, first.expect) == ("one", 5, "text", None)
    assert (second.prompt, second.max_tokens, second.kind, second.expect) == ("two", 6, "image", "2")
    assert second.media[0] is second.media[1], "a file is read once"
    assert (third.prompt, third.index) == ("one", 2)
    assert listed.make(0, TraceLine(0.0, max_tokens=1)).max_tokens == 1


def test_what_a_line_does_not_say_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "list.jsonl").write_text('{"prompt": "one"}')
    assert RequestList(tmp_path / "list.jsonl", 9).make(0).max_tokens == 9


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"prompt": 3}', '{"prompt": "x", "media": "a.png"}', '{"prompt": "x", "media": ["a.txt"]}'],
)
def test_a_line_that_cannot_be_used_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"list\.jsonl"):
        RequestList(path, 9)
