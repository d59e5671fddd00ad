"""Every answer has a request id, and nothing internal leaves with an error that no route has caught."""

from typing import Any

from server.http.envelope import Envelope
from tests.server.http.exchanges import ask


class Failing:
    """An app that reads its request's body and then fails."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        raise RuntimeError("secret 0x7f /etc")


def test_an_escaped_error_is_a_500_that_tells_only_the_id() -> None:
    status, headers, body = ask(Envelope(Failing()), [b"x"], {b"x-request-id": b"mine"})
    assert status == 500 and headers["x-request-id"] == "mine"
    assert body["error"]["message"] == "the server failed (request mine)" and body["error"]["type"] == "server_error"
