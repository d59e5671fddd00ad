"""Examples of forms are read, and every field that the reader takes stands in the document."""

import ast
import inspect
import json
from typing import Any

from server.http.openapi.transcriptions import ROUTES, CreateTranscription, Transcript, TranscriptEvent
from server.http.routes import transcriptions as reader
from server.http.routes.transcriptions import FORMATS, TranscriptSerializer
from server.request_context import RequestContext
from tests.server.http.answers import ACCEPTED, DELTAS, answered, collected, parse_all
from tests.server.http.openapi.document import document
from tests.server.http.routes.test_transcriptions import read
from tests.tables import each_of

(ROUTE,) = ROUTES


@each_of("name", ROUTE.examples)
def test_examples_are_read(name: str) -> None:
    body: dict[str, Any] = {**ROUTE.examples[name]}
    CreateTranscription.model_validate_json(json.dumps(body))
    asked = read({"file": body.pop("file").encode("ascii")}, **body)
    assert asked.request.stream == bool(body.get("stream"))


def test_every_field_that_the_reader_takes_stands_in_the_document() -> None:
    taken = {
        node.args[0].value
        for node in ast.walk(ast.parse(inspect.getsource(reader)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("form.pop", "fields.get")
        if isinstance(node.args[0], ast.Constant)
    }
    assert taken == CreateTranscription.model_fields.keys() and len(taken) == 8
    assert {*FORMATS} == {*CreateTranscription.model_json_schema()["properties"]["response_format"]["anyOf"][0]["enum"]}


def test_the_words_alone_are_a_text() -> None:
    content = document()["paths"]["/v1/audio/transcriptions"]["post"]["responses"]["200"]["content"]
    assert content.keys() == {"application/json", "text/event-stream", "text/plain"}
    assert content["text/plain"] == {"schema": {"type": "string"}}


def test_transcripts_are_answered_as_the_document_tells() -> None:
    Transcript.model_validate(answered(TranscriptSerializer(RequestContext()), ACCEPTED, collected(DELTAS)))
    writer = TranscriptSerializer(RequestContext())
    found = parse_all([*(writer.event(ACCEPTED, delta) for delta in DELTAS), writer.closing(ACCEPTED, 3)])
    for event in found:
        TranscriptEvent.model_validate(event)
    assert len(found) > 2
