"""The table of vLLM's request fields: each is refused unless neutral, or read, or without effect; the page shows it."""

import re
from pathlib import Path
from typing import Any

import pytest

from server.http.openai import CompletionBody
from server.http.vllm_fields import FIELDS, VllmField
from server.requests.sampling import SamplingRequest
from tests.server.http.request_bodies import openai, read_openai, read_tokenize, refusal
from tokenization.chat.rendering import CONTINUE, GENERATION, MEDIA, VARIABLES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compat.md"
BY_NAME = {field.name: field for field in FIELDS}
REFUSED = [field for field in FIELDS if field.treatment == "refused"]
# What a client may write there instead, of every type; a value that is neutral for a field is passed over.
VALUES: list[Any] = [True, 1, 2, 0, -1, 1.5, "none", "x", [], ["x"], {}, {"type": "json_object"}, {"a": 1}]


def is_neutral(field: VllmField, value: Any) -> bool:
    return any(type(value) is type(neutral) and value == neutral for neutral in field.neutral)


def test_no_field_stands_there_twice() -> None:
    assert len(BY_NAME) == len(FIELDS) > 80


@pytest.mark.parametrize("field", REFUSED, ids=lambda field: field.name)
def test_a_refused_field_is_a_complaint_that_names_it(field: VllmField) -> None:
    for value in VALUES:
        if is_neutral(field, value):
            continue
        for read in (read_openai, read_tokenize):
            error = refusal(read, openai(**{field.name: value}))
            assert (error.kind, error.param, error.code) == ("invalid_request", field.name, "unsupported_parameter")
            assert error.message == f"{field.name}: {field.note}"


@pytest.mark.parametrize("field", REFUSED, ids=lambda field: field.name)
def test_a_value_that_changes_nothing_passes(field: VllmField) -> None:
    for value in (None, *field.neutral):
        assert read_openai(openai(**{field.name: value})) == read_openai(openai())
        assert read_tokenize(openai(**{field.name: value})) == read_tokenize(openai())


def test_what_has_no_effect_may_be_anything() -> None:
    ignored = [field.name for field in FIELDS if field.treatment == "ignored"]
    for value in VALUES:
        assert read_openai(openai(**dict.fromkeys(ignored, value))) == read_openai(openai())


def test_honoured_fields_are_those_that_are_read() -> None:
    honoured = {field.name for field in FIELDS if field.treatment == "honoured"}
    read = {*CompletionBody.model_fields, *SamplingRequest.model_fields, CONTINUE, GENERATION, MEDIA, VARIABLES}
    assert honoured <= read and not read & (BY_NAME.keys() - honoured)


def test_a_null_inside_an_object_says_nothing() -> None:
    text = {"type": "text", "json_schema": None}
    assert read_openai(openai(response_format=text)) == read_openai(openai())
    assert refusal(read_openai, openai(response_format={**text, "json_schema": {}})).param == "response_format"


def test_true_is_not_one() -> None:
    for name, value in (("best_of", True), ("length_penalty", True), ("echo", 0), ("use_beam_search", 0)):
        assert refusal(read_openai, openai(**{name: value})).param == name


def test_every_field_has_its_row_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(field.name, field.treatment) for field in FIELDS]
