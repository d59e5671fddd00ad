"""A prefix is taken off where it stands in front of a route, and nowhere else."""

import asyncio
from typing import Any

import pytest

from server.http.middleware.root_path import RootPath


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("/llm/v1/models", "/v1/models"), ("/v1/models", "/v1/models"), ("/llm/", "/"), ("/llm", "/llm"),
        ("/llmx/v1", "/llmx/v1"), ("/llm/llm/x", "/llm/x"), ("/x/llm/y", "/x/llm/y"),
    ],
)  # fmt: skip
def test_the_path_that_the_app_sees(path: str, seen: str) -> None:
    paths: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])

    scope = {"type": "http", "path": path}
    nothing: Any = None
    asyncio.run(RootPath(app, "/llm")(scope, nothing, nothing))
    assert paths == [seen] and scope["path"] == path
