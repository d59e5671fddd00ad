"""Examples of responses are read, and what a reader takes apart by hand has the names that the document tells."""

import json
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from server.http.openapi import responses as told
from server.http.routes.responses_body import TOOL, read_responses
from server.http.routes.responses_items import ROLES
from tests.server.tables import each_of
from tokenization.chat.options import KEYS

(ROUTE,) = told.ROUTES


@each_of("name", ROUTE.examples)
def test_examples_are_read(name: str) -> None:
    body = json.dumps(ROUTE.examples[name])
    assert read_responses(body.encode(), "r1").request.id == "r1"
    TypeAdapter(ROUTE.body).validate_json(body)


@each_of("field", [{"max_tokens": 1}, {"n": 2}, {"logprobs": True}, {"top_logprobs": 21}])
def test_what_is_refused_does_not_fit(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        told.CreateResponse.model_validate({"input": "Hi", **field})


def names(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


def test_items_and_tools() -> None:
    assert set(get_args(told.InputMessage.model_fields["role"].annotation)) == {*ROLES}
    assert names(told.OfferedFunction) == {"type", *TOOL}
    assert names(told.InputPicture) == {"type", "image_url", *KEYS["image"]}
    assert names(told.InputFile) >= {"file_data", "file_url", "filename", *KEYS["video"], *KEYS["audio"]}
