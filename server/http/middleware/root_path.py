"""A prefix that a proxy leaves in the path, taken off before anything looks at it. Pure ASGI."""

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """Each route answers with and without `prefix`, which begins with a slash and ends without one."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{self._prefix}/"):
            scope = {**scope, "path": scope["path"].removeprefix(self._prefix)}
        await self._app(scope, receive, send)
