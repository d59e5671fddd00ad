"""The table of vLLM's request fields: each is refused unless neutral, or read, or without effect; the page shows it."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from server.http.long_texts import Raw
from server.http.routes import chat_completions as openai_reader
from server.http.routes.chat_completions import CompletionBody
from server.http.routes.completions import read_completions
from server.http.routes.structured import FORMS
from server.http.routes.vllm_fields import (
    FIELDS,
    KNOWN,
    MOST_MISSPELT,
    OF_RESPONSES,
    RESPONSES_FIELDS,
    VllmField,
)
from server.requests.refusal import Refusal
from server.requests.sampling import SamplingRequest
from tests.server.http.request_bodies import openai, read_openai, read_tokenize, refusal
from tests.tables import each_of
from tokenization.chat.rendering import CONTINUE, GENERATION, MEDIA
from tokenization.chat.template_variables import VARIABLES
from tokenization.chat.tool_offer import FIELDS as TOOLS

PAGE = Path(__file__).resolve().parents[4] / "docs" / "compat.md"
BY_NAME = {field.name: field for field in FIELDS}
REFUSED = [field for field in FIELDS if field.treatment == "refused"]
# What a client may write there instead, of every type; a value that is neutral for a field is passed over.
VALUES: list[Any] = [True, 1, 2, 0, -1, 1.5, "none", "x", [], ["x"], {}, {"type": "json_object"}, {"a": 1}]


def is_neutral(field: VllmField, value: Any) -> bool:
    return any(type(value) is type(neutral) and value == neutral for neutral in field.neutral)


def test_no_field_stands_there_twice() -> None:
    assert len(BY_NAME) == len(FIELDS) > 80


def test_every_field_of_openai_is_known() -> None:
    """As its SDK has them in the version that is pinned for these tests."""
    for theirs, ours in (
        (CompletionCreateParamsBase, BY_NAME.keys()),
        (TextParamsBase, KNOWN),
        (ResponseCreateParamsBase, {field.name for field in RESPONSES_FIELDS}),
    ):
        assert len(theirs.__annotations__) > 15 and not theirs.__annotations__.keys() - ours


@each_of("field", REFUSED, ids=lambda field: field.name)
def test_a_refused_field_is_a_complaint_that_names_it(field: VllmField) -> None:
    for value in VALUES:
        if is_neutral(field, value):
            continue
        for read in (read_openai, read_tokenize):
            error = refusal(read, openai(**{field.name: value}))
            assert (error.kind, error.param, error.code) == ("invalid_request", field.name, "unsupported_parameter")
            assert error.message == f"{field.name}: {field.note}"


@each_of("field", REFUSED, ids=lambda field: field.name)
def test_a_value_that_changes_nothing_passes(field: VllmField) -> None:
    for value in (None, *field.neutral):
        assert read_openai(openai(**{field.name: value})) == read_openai(openai())
        assert read_tokenize(openai(**{field.name: value})) == read_tokenize(openai())


def test_what_has_no_effect_may_be_anything() -> None:
    ignored = [field.name for field in FIELDS if field.treatment == "ignored"]
    for value in VALUES:
        assert read_openai(openai(**dict.fromkeys(ignored, value))) == read_openai(openai())


@each_of("read", [openai_reader.read_openai, read_completions])
def test_metadata_has_the_bounds_of_openais(read: Callable[[Raw, str], object]) -> None:
    """57 MiB of it were taken once."""
    most = {f"{i:064}": "é" * 512 for i in range(16)}
    for taken in (most, {"a": {"b": ["c"] * 200}}, ["x" * 500], "x" * 512, 7, {"a": None}):
        read(openai(prompt="Hi", metadata=taken), "r1")
    refused: list[tuple[Any, str]] = [
        ({**most, "more": ""}, "metadata"), ({"a" * 65: ""}, "metadata"), ({"a": "b" * 513}, "metadata.a"),
        ({"a": [{"b": "c" * 512}]}, "metadata.a"), ({"a": [[]] * 600}, "metadata.a"), ("x" * 513, "metadata"),
    ]  # fmt: skip
    for given, param in refused:
        with pytest.raises(Refusal) as caught:
            read(openai(prompt="Hi", metadata=given), "r1")
        assert caught.value.kind == "invalid_request" and caught.value.param == param


def test_honoured_fields_are_those_that_are_read() -> None:
    honoured = {field.name for field in FIELDS if field.treatment == "honoured"}
    read = {*CompletionBody.model_fields, *SamplingRequest.model_fields, CONTINUE, GENERATION, MEDIA, VARIABLES}
    read |= {*FORMS, *TOOLS}
    assert honoured <= read and not read & (BY_NAME.keys() - honoured)


@each_of("read", [openai_reader.read_openai, read_completions])
def test_a_misspelt_field_leaves_a_line(
    read: Callable[[Raw, str], object], caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """It changes nothing, as everything that is not known. What is no slip of the pen is nobody's business."""
    caplog.set_level(logging.INFO, "pixelferry.http")
    body = openai(prompt="Hi")
    asked = openai(prompt="Hi", temprature=1, my_own_label=1, user="x", metadata={}, stream_options=None)
    assert read(asked, "r1") == read(body, "r1")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "request r1: nothing reads the field 'temprature'; did you mean 'temperature'?"


def test_many_misspelt_fields_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pixelferry.http")
    read_openai(openai(**{f"temprature{i}": 1 for i in range(1000)}))
    assert len(caplog.records) == MOST_MISSPELT


def test_a_null_inside_an_object_says_nothing() -> None:
    text = {"type": "text", "json_schema": None}
    assert read_openai(openai(response_format=text)) == read_openai(openai())
    assert (
        refusal(read_openai, openai(response_format={**text, "json_schema": {}})).param == "response_format.json_schema"
    )


def test_true_is_not_one() -> None:
    for name, value in (("best_of", True), ("length_penalty", True), ("echo", 0), ("use_beam_search", 0)):
        assert refusal(read_openai, openai(**{name: value})).param == name


def test_every_field_has_its_row_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(field.name, field.treatment) for field in (*FIELDS, *OF_RESPONSES)]
