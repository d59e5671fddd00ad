"""The document of a running server: its examples are answered, and so is who looks at it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from server.http.openapi.described import DescribedRoute
from server.http.openapi.document import ROUTES
from tests.e2e.running import REPO, RunningServer, running

EXAMPLES = [(route, name) for route in ROUTES for name in route.examples]


@pytest.fixture(scope="module")
def embedded(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The embedded model, whose template shows tools."""
    root = shm_root.with_name(f"{shm_root.name}-openapi")
    with running(None, root, tmp_path_factory.mktemp("logs"), "--workers", "1") as server:
        yield server


def sent(route: DescribedRoute, body: Any) -> dict[str, Any]:
    """As the route takes a body: as JSON, or as a form with a file."""
    if route.takes == "application/json":
        return {"json": body}
    fields = {name: value for name, value in body.items() if name != "file"}
    return {"files": {"file": body["file"].encode("ascii")}, "data": fields}


@pytest.mark.parametrize(("route", "name"), EXAMPLES, ids=[f"{route.path}: {name}" for route, name in EXAMPLES])
def test_examples_run(route: DescribedRoute, name: str, embedded: RunningServer) -> None:
    answer = embedded.http.post(route.path, **sent(route, route.examples[name]))
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"] == "application/json":
        TypeAdapter(route.answer).validate_json(answer.content)
        return
    events = [event.rpartition("data: ")[2] for event in answer.text.split("\n\n") if event]
    assert (events[-1] == "[DONE]") == route.done and len(events) > 1
    for event in events[:-1] if route.done else events:
        assert route.events is not None
        route.events.model_validate_json(event)


def test_the_command_prints_what_a_server_answers(embedded: RunningServer) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "server", "openapi"], cwd=REPO, capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == embedded.http.get("/openapi.json").json()
    assert embedded.http.get("/docs").status_code == 200
