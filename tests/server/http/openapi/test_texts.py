"""Examples of texts and ids are bodies that their readers take, and that the types of the document take as well."""

import json
from typing import Any

from pydantic import TypeAdapter

from server.http.openapi.texts import COMPLETIONS, DETOKENIZE, TOKENIZE
from server.http.routes.completions import read_completions
from server.http.routes.tokenize import read_detokenize, read_tokenize
from tests.server.tables import each_of


@each_of(("route", "read"), [(COMPLETIONS, read_completions), (TOKENIZE, read_tokenize), (DETOKENIZE, read_detokenize)])
def test_examples_are_read(route: Any, read: Any) -> None:
    for body in route.examples.values():
        assert read(json.dumps(body).encode(), "r1") is not None
        TypeAdapter(route.body).validate_json(json.dumps(body))
    assert route.examples
