"""Every error that the server can answer stands in the document, by its status, in the form that it is written in."""

import ast
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from server.http.errors import STATUS, body_of
from server.http.openapi.failures import ERROR_TYPES, FAILURES, UNANSWERED
from server.metrics import FAULTS, REFUSALS
from server.requests.refusal import Refusal, RefusalKind
from tests.architecture.laws import sources
from tests.e2e.running import REPO
from tests.server.http.openapi.document import document
from tests.tables import each_of

# Where functions of server/requests/refusal.py take the code, by their names, which are those of kinds.
PLACES = {
    "invalid_request": 2, "forbidden": 1, "not_found": 2, "timed_out": 1, "overloaded": 1, "unavailable": 1,
    "internal": 1,
}  # fmt: skip


def test_every_code_of_the_metrics_stands_in_the_document() -> None:
    answered = {code for _, codes in FAILURES.values() for code in codes}
    assert {*FAULTS, *REFUSALS} - answered - UNANSWERED.keys() == set()
    assert not answered & UNANSWERED.keys()
    schemas = document()["components"]["schemas"]
    written = {
        code
        for status in FAILURES
        for code in schemas[f"Detail{status}"]["properties"]["code"].get("enum", ())
        or [schemas[f"Detail{status}"]["properties"]["code"].get("const")]
    }
    assert {*FAULTS, *REFUSALS} - UNANSWERED.keys() <= written
    text = json.dumps(document())
    assert all(f"`{code}`" in text for code in UNANSWERED)


def codes_in_the_source() -> Iterator[tuple[str, str, int]]:
    """Module, code and status of each refusal whose code is written where it is made."""
    for name, text in sources(REPO, ("server",)):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PLACES:
                place = PLACES[node.func.id]
                given: list[ast.expr] = [word.value for word in node.keywords if word.arg == "code"]
                given += node.args[place : place + 1]
                for one in given:
                    if isinstance(one, ast.Constant) and isinstance(one.value, str):
                        kind: Any = node.func.id
                        yield name, one.value, STATUS[kind]


def test_every_code_that_is_written_in_the_source_stands_by_its_status() -> None:
    found = list(codes_in_the_source())
    assert len(found) > 30
    assert [(name, code) for name, code, status in found if code not in FAILURES[status][1]] == []


def test_every_status_of_an_error_is_there() -> None:
    assert {*STATUS.values(), 405} == FAILURES.keys() == ERROR_TYPES.keys()


@each_of("kind", STATUS)
def test_an_error_has_the_form_that_the_document_tells(kind: RefusalKind) -> None:
    status = STATUS[kind]
    code = next(iter(FAILURES[status][1])) or None
    body = body_of(Refusal(kind, "why", param="inputs[0].text", code=code), "r1")
    ERROR_TYPES[status].model_validate(body)
    with pytest.raises(ValidationError):
        ERROR_TYPES[status].model_validate(body_of(Refusal(kind, "why", code="not_told"), "r1"))
    with pytest.raises(ValidationError):
        ERROR_TYPES[status].model_validate({**body, "more": 1})
