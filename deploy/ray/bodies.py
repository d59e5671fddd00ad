"""The bodies that an ingress reads, within a server's bounds of bytes and of time: Serve's proxy has none of time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from configs.serve import HttpConfig
from server.http.connection.request_body import BodyBudget, RequestBody
from server.http.connection.send_buffer import TICK_SECONDS, Clock
from server.http.responses import ClientGone
from server.requests.refusal import timed_out


class Bodies:
    """Of one ingress: who stops sending is refused, and before that holds nothing against those who send."""

    def __init__(self, config: HttpConfig) -> None:
        self._budget = BodyBudget(config, Clock())
        self._read: set[RequestBody] = set()  # of these more may come
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def held(self, receive: Receive, client: str) -> AsyncIterator[bytes]:
        """All of one of this client's, which counts until the block ends.

        Raises Refusal for one too large, without room or too slow, and ClientGone.
        """
        body = RequestBody(receive, self._budget, lambda: None, whole=False)
        body.client = client
        try:
            yield await self._whole(body)
        finally:
            body.keep(0)

    async def _whole(self, body: RequestBody) -> bytes:
        content = bytearray()
        self._read.add(body)
        if self._timer is None:
            self._tick()
        try:
            while not body.whole:
                message = await body.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                body.took(len(message.get("body", b"")))
                content += message.get("body", b"")
        finally:
            self._read.remove(body)
        return bytes(content)

    def _tick(self) -> None:
        self._timer = None
        self._budget.clock.tick()
        for body in [one for one in self._read if one.overdue]:
            body.refuse(timed_out("the body of the request came too slowly", "body_timeout"))
        if self._read:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
