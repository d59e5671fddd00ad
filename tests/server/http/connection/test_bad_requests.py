"""What never became a request gets the JSON of every other error, and a line that names its client."""

import json
from typing import Any

import pytest

from server.http.connection.bad_requests import BadRequests
from server.metrics import MALFORMED, Metrics
from server.requests.refusal import head_too_large


class Transport:
    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("203.0.113.9", 5555)}[name]


def test_a_refusal_is_a_whole_answer_that_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    metrics, transport = Metrics("tiny", "1"), Transport()
    head, _, body = BadRequests(metrics).answer(head_too_large(100), transport).partition(b"\r\n\r\n")  # type: ignore[arg-type]
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 431" and "connection: close" in lines and f"content-length: {len(body)}" in lines
    assert json.loads(body)["error"]["code"] == "head_too_large"
    shown = metrics.render().decode()
    assert 'mm_rejected_total{reason="head_too_large"} 1.0' in shown
    assert f'route="{MALFORMED}",status="431"}} 1.0' in shown
    assert [record.fields for record in caplog.records] == [{"client": "203.0.113.9:5555"}]  # type: ignore[attr-defined]
