"""Server-sent events in the spellings of several servers, cut into pieces of every size."""

import pytest

from server.loadtest.wire.sse import Events

STREAMS = {
    "plain": (b'data: {"a":1}\n\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"]),
    "without a blank": (b'data:{"a":1}\n\n', [b'{"a":1}']),
    "carriage returns": (b'data: {"a":1}\r\n\r\ndata: [DONE]\r\n\r\n', [b'{"a":1}', b"[DONE]"]),
    "carriage returns alone": (b"data: x\r\rdata: y\r\r", [b"x", b"y"]),
    "comments": (b": keep-alive\n\ndata: x\n\n: OPENROUTER PROCESSING\n\ndata: y\n\n", [b"x", b"y"]),
    "a comment inside an event": (b"data: x\n: hm\ndata: y\n\n", [b"x\ny"]),
    "names, ids and retries": (b"event: message\nid: 7\nretry: 3000\ndata: x\n\n", [b"x"]),
    "several lines": (b"data: x\ndata:  y\n\n", [b"x\n y"]),
    "several lines with carriage returns": (b"data: x\r\ndata: y\r\n\r\n", [b"x\ny"]),
    "an empty event": (b"\n\n\ndata: x\n\n", [b"x"]),
    "letters of several bytes": ("data: 港口\n\n".encode(), ["港口".encode()]),
}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("name", STREAMS)
def test_events_are_the_same_however_their_bytes_come(name: str, size: int) -> None:
    stream, expected = STREAMS[name]
    events = Events()
    found = [data for start in range(0, len(stream), size) for data in events.feed(stream[start : start + size])]
    assert found == expected
    assert events.rest() is None


def test_a_last_event_without_its_blank_line_is_not_lost() -> None:
    events = Events()
    assert events.feed(b"data: x\n\ndata: y") == [b"x"]
    assert events.rest() == b"y"
    assert events.rest() is None


def test_comments_are_counted() -> None:
    events = Events()
    events.feed(b": one\n\n:\n\ndata: x\n\n")
    assert events.comments == 2
