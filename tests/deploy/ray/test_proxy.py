"""The middleware in Serve's proxy: bodies are bounded, errors are ours, and one id stands on an answer."""

from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.ray.answer import MARK
from deploy.ray.proxy import AroundServe, middlewares


class Serve:
    """Serve's proxy as it answers: with an id of its own behind whatever it is given."""

    def __init__(self, status: int, *headers: tuple[bytes, bytes], reads: bool = True, says: bool = True) -> None:
        self._start = {"type": "http.response.start", "status": status, "headers": list(headers)}
        self._reads = reads
        self._says = says
        self.seen: dict[bytes, bytes] = {}
        self.left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen = dict(scope["headers"])
        more = self._reads
        while more:
            message = await receive()
            self.left = message["type"] == "http.disconnect"
            more = message.get("more_body", False)
        if self._says:
            await send(self._start)
            await send({"type": "http.response.body", "body": b"Internal Server Error"})


async def ask(serve: ASGIApp, content: Any = b"", path: str = "/chat", **headers: str) -> httpx.Response:
    around = AroundServe(serve, max_body_bytes=100)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(around), base_url="http://x") as http:
        return await http.post(path, content=content, headers=named)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "route_not_found"), (408, "request_timeout"), (500, "ingress_died"), (503, "no_replica")],
)
async def test_an_error_of_serve_has_our_json(status: int, code: str) -> None:
    answer = await ask(Serve(status), x_request_id="mine")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-request-id"] == "mine"
    messages = await ask(Serve(status), path="/v1/messages", x_request_id="mine")
    assert messages.json()["type"] == "error" and messages.json()["request_id"] == "mine"


async def test_an_error_of_the_ingress_passes_as_it_is() -> None:
    answer = await ask(Serve(500, MARK, (b"x-request-id", b"one")))
    assert (answer.status_code, answer.text) == (500, "Internal Server Error")
    assert answer.headers.get_list("x-request-id") == ["one"] and MARK[0].decode() not in answer.headers


async def test_no_answer_at_all_is_an_error() -> None:
    answer = await ask(Serve(200, says=False))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "no_answer")


async def test_serve_never_holds_a_body_that_is_too_large() -> None:
    announced = Serve(200)
    answer = await ask(announced, b"x" * 101)
    assert (answer.status_code, answer.json()["error"]["code"], announced.seen) == (413, "body_too_large", {})

    async def pieces() -> Any:
        for _ in range(11):
            yield b"x" * 10

    told = Serve(200)
    answer = await ask(told, pieces())
    assert (answer.status_code, answer.json()["error"]["code"], told.left) == (413, "body_too_large", True)
    assert (await ask(Serve(200, MARK), b"x" * 100)).status_code == 200


async def test_a_client_tells_serve_nothing_but_its_request() -> None:
    serve = Serve(200, MARK)
    await ask(serve, x_request_id="a b", x_request_disconnect_disabled="?1", x_request_timeout_seconds="1", other="o")
    assert serve.seen[b"other"] == b"o"
    assert not {b"x-request-id", b"x-request-disconnect-disabled", b"x-request-timeout-seconds"} & serve.seen.keys()
    await ask(serve, x_request_id="a-b.1")
    assert serve.seen[b"x-request-id"] == b"a-b.1"


async def test_what_is_not_http_passes() -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)

    async def nothing() -> Message:
        raise AssertionError

    (middleware,) = middlewares()
    await middleware.cls(app, *middleware.args, **middleware.kwargs)({"type": "websocket"}, nothing, nothing)  # type: ignore[arg-type]
    assert scopes == [{"type": "websocket"}]
