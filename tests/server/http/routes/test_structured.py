"""The form of an answer as three routes read it: what each field gives, and the 400 that names the field."""

import json
from typing import Any

from server.http.routes.completions import read_completions
from server.http.routes.structured import MOST_CHARACTERS, MOST_VALUES
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from tests.server.http.request_bodies import native, openai, read_native, read_openai, refusal
from tests.server.tables import each_of
from tokenization.chat.grammar import Grammar

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}}
SOURCE = '{"type":"object","properties":{"b":{"type":"string"},"a":{}}}'
PARAM = "response_format.json_schema.schema"


def named(**fields: Any) -> dict[str, Any]:
    """A response_format with a schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, **fields}}}


def outputs(**fields: Any) -> dict[str, Any]:
    return {"structured_outputs": fields}


def read_text(raw: bytes) -> ChatRequest:
    return read_completions(raw, "r1").requests[0]


ASKED: list[tuple[dict[str, Any], Grammar | None]] = [
    ({"response_format": None, "structured_outputs": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, Grammar(kind="json_object", source="", param="response_format")),
    (named(), Grammar(kind="json_schema", source=SOURCE, param=PARAM)),
    (named(strict=None, description="d"), Grammar(kind="json_schema", source=SOURCE, param=PARAM)),
    (named(strict=True), Grammar(kind="json_schema", source=SOURCE, param=PARAM, strict=True)),
    (outputs(json=SCHEMA), Grammar(kind="json_schema", source=SOURCE, param="structured_outputs.json")),
    (outputs(json=SOURCE), Grammar(kind="json_schema", source=SOURCE, param="structured_outputs.json")),
    (outputs(regex="a+", json=None), Grammar(kind="regex", source="a+", param="structured_outputs.regex")),
    (outputs(regex=""), Grammar(kind="regex", source="", param="structured_outputs.regex")),
    (outputs(choice=["a", "é"]), Grammar(kind="choice", source='["a","é"]', param="structured_outputs.choice")),
    (outputs(json_object=True), Grammar(kind="json_object", source="", param="structured_outputs.json_object")),
    (outputs(grammar='start: "a"'), Grammar(kind="lark", source='start: "a"', param="structured_outputs.grammar")),
    (outputs(grammar='root ::= "a"'), Grammar(kind="ebnf", source='root ::= "a"', param="structured_outputs.grammar")),
    (
        outputs(grammar='start: "a" // ::='),
        Grammar(kind="lark", source='start: "a" // ::=', param="structured_outputs.grammar"),
    ),
    (
        {"response_format": {"type": "text"}, **outputs(regex="a", disable_any_whitespace=True)},
        Grammar(kind="regex", source="a", param="structured_outputs.regex"),
    ),
]


@each_of(("fields", "grammar"), ASKED)
def test_three_routes_read_it_alike(fields: dict[str, Any], grammar: Grammar | None) -> None:
    assert read_openai(openai(**fields)).grammar == grammar
    assert read_native(native(**fields)).grammar == grammar
    assert read_text(json.dumps({"prompt": "Hi", **fields}).encode()).grammar == grammar


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "json"}, "response_format", "must be an object"),
    ({"response_format": []}, "response_format", "must be an object"),
    ({"response_format": {}}, "response_format.type", "text, json_object, json_schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "text, json_object, json_schema"),
    ({"response_format": {"type": ["text"]}}, "response_format.type", "text, json_object, json_schema"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", "no such field"),
    ({"response_format": {"type": "text", "json_schema": {}}}, "response_format.json_schema", "needs type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "must be an object"),
    (named(name=None), "response_format.json_schema.name", "must be a string"),
    (named(name=3), "response_format.json_schema.name", "must be a string"),
    (named(description=3), "response_format.json_schema.description", "must be a string"),
    (named(strict="yes"), "response_format.json_schema.strict", "must be true or false"),
    (named(schema=None), PARAM, "must be a JSON schema"),
    (named(schema=[]), PARAM, "must be a JSON schema"),
    (named(shema={}), "response_format.json_schema.shema", "did you mean 'schema'?"),
    (outputs(), "structured_outputs", "exactly one of json, regex, choice, grammar, json_object"),
    ({"structured_outputs": "a+"}, "structured_outputs", "must be an object"),
    (outputs(regex="a", choice=["a"]), "structured_outputs", "exactly one"),
    (outputs(regex={"1": "Python"}), "structured_outputs.regex", "must be a string"),
    (outputs(regex="a\x00"), "structured_outputs.regex", "NUL"),
    (outputs(json=""), "structured_outputs.json", "not empty"),
    (outputs(json=3), "structured_outputs.json", "must be a JSON schema"),
    (outputs(choice=[]), "structured_outputs.choice", "not empty"),
    (outputs(choice="a"), "structured_outputs.choice", "must be a list"),
    (outputs(choice=["a", 1]), "structured_outputs.choice[1]", "must be a text"),
    (outputs(grammar=" \n"), "structured_outputs.grammar", "not empty"),
    (outputs(grammar=3), "structured_outputs.grammar", "must be a string"),
    (outputs(json_object=False), "structured_outputs.json_object", "must be true"),
    (outputs(regex="a", whitespace_pattern=" "), "structured_outputs.whitespace_pattern", "blanks of one form"),
    (outputs(json={}, disable_additional_properties=True), "structured_outputs.disable_additional_properties", "false"),
    (outputs(structural_tag="{}"), "structured_outputs.structural_tag", "not supported"),
    (outputs(regexp="a"), "structured_outputs.regexp", "did you mean 'regex'?"),
    ({"response_format": {"type": "json_object"}, **outputs(regex="a")}, "structured_outputs", "one of the two"),
    (outputs(regex="a" * (MOST_CHARACTERS + 1)), "structured_outputs.regex", "more than"),
    (outputs(choice=["a"] * MOST_VALUES), "structured_outputs.choice", "more than"),
    (named(schema={"enum": list(range(MOST_VALUES))}), PARAM, "more than"),
    (named(schema={"const": "a" * MOST_CHARACTERS}), PARAM, "more than"),
]


@each_of(("fields", "param", "said"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_shape_is_a_complaint_that_names_the_field(fields: dict[str, Any], param: str, said: str) -> None:
    for error in (
        refusal(read_openai, openai(**fields)),
        refusal(read_native, native(**fields)),
        refusal(read_text, json.dumps({"prompt": "Hi", **fields}).encode()),
    ):
        assert isinstance(error, Refusal)
        assert (error.kind, error.param) == ("invalid_request", param)
        assert said in error.message and error.message.startswith(param)
