"""The document of a running server: its examples are answered, and so is who looks at it."""

import json
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from server.commands import main
from server.http.openapi.described import DescribedRoute
from server.http.openapi.document import ROUTES
from tests.e2e.running import RunningServer

pytestmark = pytest.mark.process

EXAMPLES = [(route, name) for route in ROUTES for name in route.examples]


def sent(route: DescribedRoute, body: Any) -> dict[str, Any]:
    """As the route takes a body: as JSON, or as a form with a file."""
    if route.takes == "application/json":
        return {"json": body}
    fields = {name: value for name, value in body.items() if name != "file"}
    return {"files": {"file": body["file"].encode("ascii")}, "data": fields}


def test_examples_run(embedded: RunningServer) -> None:
    wrong = {}
    for route, name in EXAMPLES:
        answer = embedded.http.post(route.path, **sent(route, route.examples[name]))
        try:
            assert answer.status_code == 200, answer.text
            as_described(route, answer)
        except (AssertionError, ValueError) as error:  # pydantic's is a ValueError
            wrong[f"{route.path}: {name}"] = str(error)
    assert len(EXAMPLES) > 20 and not wrong


def as_described(route: DescribedRoute, answer: httpx.Response) -> None:
    """The body, or each event, is what the document says of it."""
    if answer.headers["content-type"] == "application/json":
        TypeAdapter(route.answer).validate_json(answer.content)
        return
    events = [event.rpartition("data: ")[2] for event in answer.text.split("\n\n") if event]
    assert (events[-1] == "[DONE]") == route.done and len(events) > 1
    for event in events[:-1] if route.done else events:
        assert route.events is not None
        route.events.model_validate_json(event)


def without_defaults(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_defaults(one) for name, one in value.items() if name != "default"}
    return [without_defaults(one) for one in value] if isinstance(value, list) else value


def test_the_command_prints_what_a_server_answers(embedded: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    """But for the defaults of sampling, which are the served checkpoint's."""
    assert main(["openapi"]) == 0
    printed, served = json.loads(capsys.readouterr().out), embedded.http.get("/openapi.json").json()
    assert served["components"]["schemas"]["NativeParameters"]["properties"]["temperature"]["default"] == 0
    assert without_defaults(printed) == without_defaults(served)
    assert embedded.http.get("/docs").status_code == 200
