"""What an application's messages tell the guard of its connection: how far its request is, and how far the answer."""

from h11 import LocalProtocolError
from starlette.types import Message, Receive, Scope, Send

from server.http.connection.guard import Guard

LAST: Message = {"type": "http.response.body", "body": b""}


async def begin(guard: Guard, scope: Scope) -> None:
    """As Guard.asked."""
    has_body = any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )
    await guard.asked(scope, has_body=has_body)


def telling(guard: Guard, receive: Receive, send: Send) -> Send:
    """`send`, of whose messages the guard is told. What is left of a body is read before an answer ends.

    So a client that still sends hears its answer, and what it sends is never taken for a request.
    """

    async def tell(message: Message) -> None:
        begins = message["type"] == "http.response.start"
        if begins:
            message["headers"] = [*message.get("headers", ()), *guard.begins()]
        elif guard.owes_body and not message.get("more_body", False):
            await _written(guard, send, {**message, "more_body": True})
            await guard.drain(receive)
            message = LAST
        await _written(guard, send, message)
        if not begins and not message.get("more_body", False):
            guard.ended()

    return tell


async def _written(guard: Guard, send: Send, message: Message) -> None:
    try:
        await send(message)
    except LocalProtocolError:
        if not guard.outbox.is_closing():  # else the client said something that ended the connection
            raise
