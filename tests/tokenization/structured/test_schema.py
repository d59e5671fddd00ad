"""Schemas that an answer is not held to: the keyword and its pointer; and what passes as an annotation."""

from typing import Any

from tests.tables import each_of
from tokenization.structured.schema import MAX_SCHEMAS, MAX_STEPS, Unsupported, unsupported

NOT_HELD: list[tuple[Any, str, str]] = [
    (False, "", "allows no answer"),
    ([], "", "a schema is an object"),
    ({"properties": {"foo": "bar"}}, "/properties/foo", "a schema is an object"),
    ({"properties": {"a/b~": {"uniqueItems": True}}}, "/properties/a~1b~0/uniqueItems", "not held"),
    ({"items": [{}, {"not": {}}]}, "/items/1/not", "not held"),
    ({"anyOf": [{"if": {}, "then": {"type": "null"}}]}, "/anyOf/0/if", "not held"),
    ({"additionalProperties": {"contains": {"type": "null"}}}, "/additionalProperties/contains", "not held"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"propertyNames": {"maxLength": 2}}}}, "/$defs/a/propertyNames", "not held"),
    ({"$ref": "#"}, "/$ref", "comes back to itself"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "/$ref", "comes back"),
    ({"$ref": "http://example.com/a.json"}, "/$ref", "in the schema itself"),
    ({"$ref": "a.json#/a"}, "/$ref", "in the schema itself"),
    ({"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, "/$ref", "in the schema itself"),
    ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, "/$ref", "nothing at the place"),
    ({"$ref": 3}, "/$ref", "must be a text"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": 3}}}, "/$ref", "in the schema itself"),
    ({"$dynamicRef": "#a"}, "/$dynamicRef", "in the schema itself"),
    ({"properties": {"a": {"$id": "b"}}}, "/properties/a/$id", "only the whole schema"),
    ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema", "drafts 4, 6, 7"),
    ({"x-guidance": {"lenient": True}}, "/x-guidance", "the compiler's options"),
    ({"type": "strnig"}, "/type", "a type's name"),
    ({"type": []}, "/type", "a type's name"),
    ({"type": ["string", 3]}, "/type", "a type's name"),
    ({"enum": []}, "/enum", "a list of values"),
    ({"required": True}, "/required", "a list of names"),
    ({"minLength": -1}, "/minLength", "a whole number"),
    ({"maxItems": True}, "/maxItems", "a whole number"),
    ({"maxItems": 1 << 40}, "/maxItems", "a whole number"),
    ({"minimum": "3"}, "/minimum", "a number"),
    ({"properties": []}, "/properties", "an object of schemas"),
    ({"patternProperties": {"^a": {"type": "string"}}, "properties": 3}, "/patternProperties", "additionalProperties"),
    ({"allOf": {}}, "/allOf", "a list of schemas"),
    ({"multipleOf": 0}, "/multipleOf", "above 0"),
    ({"multipleOf": 0.01}, "/multipleOf", "no exact multiples"),
    ({"format": "uri-template"}, "/format", "is not known"),
    ({"pattern": "^(?=a)"}, "/pattern", "look-ahead"),
    ({"pattern": "(a)\\1"}, "/pattern", "a reference to a group"),
    ({"pattern": "\\bfoo"}, "/pattern", "a bound of words"),
    ({"pattern": "[a-z&&[^b]]"}, "/pattern", "several ways"),
    ({"pattern": "[^\\w]"}, "/pattern", "readers differ"),
    ({"patternProperties": {"(?!x)": {}}}, "/patternProperties/(?!x)", "look-ahead"),
    ({"patternProperties": {"^a": {"type": "string"}}}, "/patternProperties", "additionalProperties is false"),
    (
        {"patternProperties": {"^a": {"minimum": 3}}, "properties": {"ab": {}}, "additionalProperties": False},
        "/patternProperties/^a",
        "properties may list too",
    ),
    ({"properties": {"a\n": {}}}, "/properties/a\n", "several spellings"),
    ({"type": "object", "minProperties": 2}, "/minProperties", "said twice"),
    ({"enum": [1], "required": ["a"], "minProperties": 3}, "/minProperties", "said twice"),
]


@each_of(("schema", "place", "said"), NOT_HELD, ids=lambda value: str(value)[:50])
def test_a_keyword_that_is_not_held_is_named_by_its_place(schema: Any, place: str, said: str) -> None:
    found = unsupported(schema)
    assert found is not None
    assert found.pointer == place and said in found.reason
    assert found.keyword in place.split("/") or not place


@each_of(
    "schema",
    [
        True,
        {},
        {"title": "t", "description": "d", "default": 3, "examples": [1], "$comment": "c", "deprecated": True},
        {"readOnly": True, "writeOnly": False, "contentEncoding": "base64", "contentMediaType": "text/html"},
        {"nullable": True, "discriminator": {"propertyName": "a"}, "x-order": 1, "propertyOrder": ["a"]},
        {"format": "int64"},
        {"format": "password", "uniqueItems": False, "minProperties": 1},
        {"$defs": {"nobody asks": {"not": {}}}, "definitions": {"for it": 3}, "type": "string"},
        {"properties": {"a": {"$ref": "#"}}},
        {"items": {"$ref": "#/properties/%25~0~1/"}, "properties": {"%~/": {"": {}}}},
        {
            "type": "number",
            "minimum": 3,
            "exclusiveMinimum": True,
            "$schema": "http://json-schema.org/draft-04/schema#",
        },
        {"patternProperties": {"^x-": {}}, "properties": {"x-a": {"type": "string"}}, "additionalProperties": False},
        {"patternProperties": {"^x-": {"type": "string"}}, "properties": {"y": {}}, "additionalProperties": False},
        {"pattern": "^(?:a|(?<n>b))[-.\\]\\w]{2,3}$", "multipleOf": 0.25},
    ],
    ids=str,
)
def test_what_binds_nothing_passes(schema: Any) -> None:
    assert unsupported(schema) is None


def test_a_schema_is_walked_within_bounds() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"items": deep}
    found = unsupported(deep)
    assert found is not None and found.pointer == "/items" * (MAX_STEPS + 1)
    many = unsupported({"anyOf": [{"title": str(i)} for i in range(MAX_SCHEMAS)]})
    assert many is not None and "more than" in many.reason
    bush: dict[str, Any] = {"type": "string"}
    for _ in range(50):  # 2^50 ways, 51 schemas
        bush = {"anyOf": [bush, bush]}
    assert unsupported(bush) is None


def test_a_chain_of_references_ends() -> None:
    links = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(1000)}
    found = unsupported({"$ref": "#/$defs/0", "$defs": links})
    assert found == Unsupported(
        pointer="/$ref", keyword="$ref", reason="the reference comes back to itself, and to no value"
    )


def test_a_sentence_names_keyword_and_place_and_stays_short() -> None:
    found = unsupported({"properties": {"a\x01" + "b" * 1000: {"not": {}}}})
    assert found is not None
    assert len(found.told) < 400
    inner = unsupported({"items": {"not": {}}})
    assert inner is not None
    assert inner.told == "not at /items/not: what it says of a value is not held while the answer is drawn"
    whole = unsupported(False)
    assert whole is not None and whole.told == "the schema itself: false allows no answer"
