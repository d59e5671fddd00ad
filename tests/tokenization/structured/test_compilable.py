"""What a schema is made into for the compiler: closed for strict, exclusive choices told apart, times by patterns."""

import re
from typing import Any

from tests.tables import each_of
from tokenization.structured.compilable import TIMES, innermost, make_compilable
from tokenization.structured.exact_grammar import OTHER_NAMES
from tokenization.structured.schema import pointer

A = {"type": "object", "properties": {"t": {"const": "a"}, "x": {"type": "integer"}}, "required": ["t"]}
B = {"type": "object", "properties": {"t": {"enum": ["b", "c"]}}, "required": ["t", "y"]}
CLOSED = {"type": "object", "properties": {"x": {}}, "additionalProperties": False}


def copied(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: copied(one) for key, one in schema.items()}
    return [copied(one) for one in schema] if isinstance(schema, list) else schema


def held(schema: Any, *, strict: bool = False) -> Any:
    own = copied(schema)
    assert make_compilable(own, strict=strict) is None
    return own


@each_of(
    ("choices", "are"),
    [
        ([{"type": "string"}, {"type": ["integer", "null"]}], True),
        ([{"type": "number"}, {"type": "integer"}], False),
        ([{"const": "a"}, {"enum": ["b", 1]}], True),
        ([{"const": 1}, {"const": 1.0}], False),
        ([{"const": True}, {"const": 1}], True),
        ([{"enum": [1, 2]}, {"enum": [2, 3]}], False),
        ([{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], True),
        ([{"$ref": "#/$defs/A"}, {"properties": {"t": {"const": "b"}}, "required": ["t"]}], False),
        ([{**A, "required": []}, B], False),
        ([CLOSED, B], True),
        ([{**CLOSED, "patternProperties": {"^y": {}}}, {**B, "properties": {}}], False),
        ([{"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "integer"}}], False),
        ([{"type": "string"}], True),
        ([{}, False], True),
    ],
    ids=str,
)
def test_choices_that_exclude_each_other_become_an_any_of(choices: list[Any], are: bool) -> None:
    own = held({"oneOf": choices, "$defs": {"A": A, "B": B}})
    assert ("anyOf" in own, "oneOf" in own) == (are, not are)


def test_null_by_two_choices_is_no_value() -> None:
    own = held({"oneOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}, {"type": "boolean"}]})
    assert own == {"anyOf": [{"type": ["string"]}, {"type": ["integer"]}, {"type": "boolean"}]}


def test_an_object_that_lists_names_spells_others_in_one_way() -> None:
    of = {"type": "integer"}
    assert held({"properties": {"a": {}}, "additionalProperties": of}) == {
        "properties": {"a": {}}, "additionalProperties": False, "patternProperties": {OTHER_NAMES: of},
    }  # fmt: skip
    assert held({"required": ["a"]})["patternProperties"] == {OTHER_NAMES: True}
    assert held(CLOSED) == CLOSED
    assert held({"type": "object"}) == {"type": "object"}


def test_hints_without_a_rule_are_left_out() -> None:
    assert held({"format": "int64", "uniqueItems": False, "$id": "x", "type": "integer"}) == {"type": "integer"}
    assert held({"format": "email"}) == {"format": "email"}


def test_strict_closes_each_object_and_asks_for_all_of_it() -> None:
    inner = {"type": "object", "properties": {"c": {"type": "null"}}, "required": []}
    own = held({"properties": {"a": {"type": "array", "items": inner}, "b": {}}, "required": ["b"]}, strict=True)
    assert own["required"] == ["a", "b"] and own["additionalProperties"] is False
    assert own["properties"]["a"]["items"] == {**inner, "required": ["c"], "additionalProperties": False}
    told_apart = {"oneOf": [{**A, "required": []}, {**B, "required": []}]}  # as pydantic has it, by a default
    assert "oneOf" in held(told_apart) and "anyOf" in held(told_apart, strict=True)


@each_of(
    ("schema", "keyword"),
    [
        ({"type": "object"}, "type"),
        ({"type": ["object", "null"]}, "type"),
        ({"properties": {}, "additionalProperties": {}}, "additionalProperties"),
        ({"properties": {}, "additionalProperties": True}, "additionalProperties"),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False}, "patternProperties"),
        ({"allOf": [{"properties": {}}, {"properties": {}}]}, "allOf"),
        ({"uniqueItems": True}, "uniqueItems"),
    ],
)
def test_what_strict_cannot_mean_is_said(schema: Any, keyword: str) -> None:
    found = make_compilable(copied({"items": schema}), strict=True)
    assert found is not None and found.keyword == keyword and found.pointer == f"/items/{keyword}"


@each_of(
    ("kind", "text", "fits"),
    [
        ("date", "2024-02-29", True), ("date", "2023-02-29", False), ("date", "1900-02-29", False),
        ("date", "2000-02-29", True), ("date", "0000-01-01", False), ("date", "2023-04-31", False),
        ("date", "2023-12-31", True), ("time", "23:59:59Z", True), ("time", "23:59:60Z", False),
        ("time", "24:00:00Z", False), ("time", "12:00:00", False), ("time", "12:00:00.5+01:30", True),
        ("date-time", "2024-02-29T12:00:00Z", True), ("date-time", "2024-02-29 12:00:00Z", False),
    ],
)  # fmt: skip
def test_times_are_those_of_the_calendar(kind: str, text: str, fits: bool) -> None:
    assert bool(re.search(TIMES[kind], text)) == fits
    assert held({"format": kind}) == {"allOf": [{"pattern": TIMES[kind]}]}


def lattice(n: int, keyword: str = "anyOf", *, deep: bool = False, dag: bool = False) -> dict[str, Any]:
    """n definitions, each a choice among all others (of a dag: those behind it) and an object."""
    definitions: dict[str, Any] = {}
    for i in range(n):
        others = [{"$ref": f"#/$defs/{'e' if deep else 'd'}{j}"} for j in range(i + 1 if dag else 0, n) if j != i]
        own = {"type": "object", "properties": {f"p{i}": {"type": "integer"}}, "required": [f"p{i}"]}
        definitions |= {f"d{i}": {keyword: [*others, own]}, f"e{i}": {"anyOf": [{"$ref": f"#/$defs/d{i}"}]}}
    return {
        "$defs": definitions,
        "type": "object",
        "properties": {"n": {"type": "integer"}, "x": {"$ref": "#/$defs/d0"}},
    }


@each_of(
    ("schema", "place"),
    [
        (lattice(33), "$ref at /properties/x/$ref"), (lattice(33, "allOf"), "$ref at /properties/x/$ref"),
        (lattice(33, "oneOf"), "$ref at /properties/x/$ref"), (lattice(33, deep=True), "$ref at /properties/x/$ref"),
        ({**lattice(33), "properties": {"x": {"type": "array", "items": {"$ref": "#/$defs/d0"}}}},
         "$ref at /properties/x/items/$ref"),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/d3"}], "$defs": lattice(33)["$defs"]}, "anyOf at /anyOf"),
    ],
)  # fmt: skip
def test_choices_among_choices_have_a_bound(schema: Any, place: str) -> None:
    """25 KB of them cost a mask 32 ms and 208 KB 5.9 s, over 152,000 words: the engine stood still meanwhile."""
    found = make_compilable(schema)
    assert found is not None and found.told.startswith(f"{place}: more than 1024 choices in a row")


@each_of("schema", [lattice(32), lattice(45, dag=True), {"anyOf": [{"const": i} for i in range(3000)]}])
def test_as_many_choices_as_anybody_needs_are_taken(schema: Any) -> None:
    assert make_compilable(schema) is None


def test_multiples_that_the_compiler_cannot_multiply_are_refused_together() -> None:
    """It does so in 32 bits: 65,536 was taken for a multiple of 65,537, too. Apart from each other they are held."""
    first, second = {"multipleOf": 65536}, {"multipleOf": 65537}
    for joined in (
        {"allOf": [first, second]},
        {**first, "anyOf": [{"type": "string"}, second]},
        {**first, "$ref": "#/$defs/b", "$defs": {"b": {"allOf": [second]}}},
        {"multipleOf": 0.5, "allOf": [{"multipleOf": 1 << 29}]},
        {**first, "$ref": "#/$defs/b", "$defs": {"b": {**second, "$ref": "#/$defs/c"}, "c": {"type": "integer"}}},
    ):
        found = make_compilable(copied(joined))
        assert found is not None and found.pointer == "/multipleOf", joined
    for apart in ({"anyOf": [first, second]}, {"properties": {"a": first, "b": second}}, {"allOf": [first, first]}):
        assert make_compilable(copied(apart)) is None, apart


def test_the_innermost_schema_that_fails_is_found() -> None:
    """By a compiler that takes no `bad` anywhere; definitions are at hand, whose own fault is theirs."""
    schema = {
        "$defs": {"good": {"type": "string"}},
        "properties": {"a": {"items": [{}, {"anyOf": [{"bad": 1, "$ref": "#/$defs/good"}]}]}, "b": {}},
    }
    asked: list[Any] = []

    def fails(one: Any) -> bool:
        asked.append(one)
        assert "$defs" in one
        return "bad" in str(one)

    assert pointer(innermost(schema, fails)) == "/properties/a/items/1/anyOf/0"
    assert innermost(schema, fails, most=0) == ()
    assert len(asked) < 10
