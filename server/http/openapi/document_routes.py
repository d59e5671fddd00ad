"""GET /openapi.json, made at the first request, and GET /docs, the page that shows it."""

import asyncio
import base64
import gc
import hashlib
import re
from collections.abc import Mapping
from functools import partial
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from server.http.health import LOOK
from server.http.responses import encoded

PAGE_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-cache"}


def add_document_routes(
    app: Starlette, version: str, root_path: str | None, defaults: Mapping[str, float] | None
) -> None:
    """Both routes, for GET and HEAD. The arguments are those of openapi_document."""
    made: list[bytes] = []
    making = asyncio.Lock()  # those who ask meanwhile wait for the first

    def make() -> None:
        # FastAPI and the types of every body and answer are a third of what a start would import.
        from server.http.openapi.document import openapi_document

        made[:] = [encoded(openapi_document(version, root_path, defaults))]
        gc.freeze()  # the types stay: no collection is to look at them between two tokens

    async def document(_: Request) -> Response:
        async with making:
            if not made:
                await asyncio.to_thread(make)
        return Response(made[0], media_type="application/json")

    page = partial(page_response, files(__package__).joinpath("page.html").read_bytes())

    async def docs(_: Request) -> Response:
        return page()

    app.add_route("/openapi.json", document, methods=list(LOOK))
    app.add_route("/docs", docs, methods=list(LOOK))


def page_response(page: bytes) -> Response:
    """The page, which may run its own script, have its own style and ask its own server, and nothing else."""
    script, style = (
        base64.b64encode(hashlib.sha256(found).digest()).decode()
        for found in re.findall(rb"<(?:script|style)>(.*?)</", page, re.DOTALL)[::-1]
    )
    policy = (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Response(page, media_type="text/html", headers={**PAGE_HEADERS, "content-security-policy": policy})
