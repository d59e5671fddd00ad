"""What compiled schemas take and refuse, text by text: places where the library alone would take an invalid answer.

The whole corpus of published schemas is tests/tokenization/structured/test_corpus.py.
"""

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from configs.checkpoint import Checkpoint
from configs.settings import EMBEDDED_MODEL
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.chat.grammar import Grammar
from tokenization.structured.compile import compiled
from tokenization.structured.vocabulary import LIMITS, GrammarVocabulary
from tokenization.text.bpe import BPETokenizer

WHOLE = {"type": "integer"}
ID = 2**60 + 1  # no double
OPEN = {"type": "object", "properties": {"a": WHOLE}}
TAGGED = {
    "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
    "$defs": {
        "cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": WHOLE}, "required": ["kind"]},
        "dog": {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]},
    },
}
# A schema, texts that are valid by it and taken, and texts that are not and that must not be.
VERDICTS: list[tuple[Any, list[str], list[str]]] = [
    (
        OPEN,
        ['{"a": 1}', '{"a": 1, "b": "x"}', '{"b": "x"}', "{}"],
        ['{"a": "x"}', '{"\\u0061": "x"}', '{"a": 1, "a": "x"}'],
    ),
    ({**OPEN, "additionalProperties": WHOLE}, ['{"b": 2}'], ['{"b": "x"}', '{"\\u0061": 1.5}']),
    ({**OPEN, "additionalProperties": False}, ["{}"], ['{"b": 2}']),
    (
        {"allOf": [{"properties": {"a": True}}, {"additionalProperties": WHOLE, "type": "object"}]},
        ['{"a": 1}', '{"b": 2}'],
        ['{"a": []}', '{"b": []}'],
    ),
    (
        {"type": "object", "patternProperties": {"^x": WHOLE}, "additionalProperties": False, "properties": {"y": {}}},
        ['{"y": "s", "xa": 3}'],
        ['{"xa": "s"}', '{"\\u0078a": "s"}', '{"z": 3}'],
    ),
    (TAGGED, ['{"kind": "cat", "lives": 9}', '{"kind": "dog"}'], ['{"kind": "cow"}', '{"kind": "cat", "lives": "x"}']),
    ({"oneOf": [{"type": ["string", "null"]}, {"type": ["integer", "null"]}]}, ['"a"', "3"], ["null", "[]"]),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"2023-02-30"', '"0000-01-01"']),
    ({"type": "string", "format": "date-time"}, ['"2024-02-29T23:59:59Z"'], ['"2024-02-29T23:59:60Z"']),
    ({"type": "string", "format": "date", "pattern": "^2"}, ['"2024-01-01"'], ['"1999-01-01"', '"2"']),
    ({"format": "date"}, ["3", '"2024-01-01"'], ['"today"']),
    ({"type": "number", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3", "3.0"]),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}, "maxLength": 2}, ['"ab"'], ['"abc"', "3"]),
    ({"items": [WHOLE], "additionalItems": False, "type": "array"}, ["[1]", "[]"], ["[1, 2]", '["a"]']),
    ({"type": "string", "pattern": "b"}, ['"abc"'], ['"a"']),
    ({"type": "string", "maxLength": 2}, ['"😀é"'], ['"abc"', '"\\u0061"']),
    ({"enum": ["a", 1, None, {"k": [True]}]}, ['"a"', "null", '{"k": [true]}'], ["true", '"1"']),
    (True, ['{"a": [1, null]}'], ["{", "nul"]),
    # Numbers: the compiler reads each as a double, and forgets the whole number that an open range begins with.
    ({"const": 9007199254740993}, ["9007199254740993"], ["9007199254740992"]),
    ({"const": -(2**63)}, ["-9223372036854775808"], ["-9223372036854775807"]),
    ({"enum": [2**60 + i for i in range(1, 3000)]}, [f"{2**60 + 2999}"], [f"{2**60}", f"{2**60 + 3000}"]),
    ({"const": 10**25}, ["10000000000000000000000000"], ["1"]),
    ({"const": 0.12345678901234566}, ["0.12345678901234566"], ["0.12345678901234568"]),
    (
        {"type": "integer", "minimum": 100000000000000001, "maximum": 100000000000000003},
        ["100000000000000001", "100000000000000003"],
        ["100000000000000000", "100000000000000004"],
    ),
    ({**WHOLE, "minimum": -(2**63), "maximum": 2**63 - 1}, [f"{-(2**63)}", f"{2**63 - 1}", "7"], [f"{2**63}"]),
    ({**WHOLE, "minimum": 0, "maximum": 2**64 - 1}, ["18446744073709551615"], ["18446744073709551616", "-1"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.5", "0.000001"], ["0", "0.0", "-0.0"]),
    ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, ["-0.5", "-0.1"], ["0", "-0", "-0.0"]),
    ({"type": "number", "maximum": 3.651}, ["3.65", "3.6", "3", "-7"], ["3.652"]),
    (
        {"type": "number", "maximum": 0.30000000000000004},
        ["0.30000000000000004", "0.3", "0.30000000000000003", "-7.25", "0"],
        ["0.30000000000000005", "0.31", "1"],
    ),
    (
        {"type": ["number", "null"], "minimum": -1.0000000000000002, "exclusiveMaximum": 0.12345678901234568},
        ["-1.0000000000000002", "-1.0000000000000001", "0.12345678901234566", "0", "null"],
        ["-1.0000000000000003", "0.12345678901234568", "0.123456789012345679", "-2"],
    ),
    (
        {"type": "number", "minimum": 0.41123456789012347, "maximum": 0.4112345678901236},
        ["0.41123456789012347", "0.4112345678901235", "0.41123456789012360"],
        ["0.4112345678901234", "0.41123456789012361", "0", "1"],
    ),
    (
        {"allOf": [{"type": "number", "maximum": 1.0000000000000002}, {"minimum": 0.30000000000000004}]},
        ["1.0000000000000002", "0.30000000000000004", "1", "0.5"],
        ["0.3", "1.0000000000000003", "0.30000000000000003"],
    ),
    ({"maximum": 3.651}, ["3.65", '"a"', "null"], ["3.652", "4"]),
    ({"type": ["number", "null"], "minimum": -120.75}, ["-120.7", "null"], ["-120.8", '"a"']),
    ({"type": "number", "exclusiveMinimum": 2147483647}, ["2147483648", "2147483647.5"], ["2147483647"]),
    ({"type": "number", "exclusiveMinimum": -(2**53) - 1, "maximum": -(2**53)}, [f"{-(2**53)}"], [f"{1 - 2**53}"]),
    ({"type": "number", "minimum": 2**53, "exclusiveMaximum": 2**53 + 1}, [f"{2**53}"], [f"{2**53 + 1}"]),
    ({"type": "number", "maximum": 2**63 - 1}, ["1.5", f"{2**63 - 1}"], [f"{2**63}"]),
    (
        {
            "type": "object",
            "required": ["id"],
            "properties": {"id": {"enum": [2**60 + 1]}, "t": {"type": "string"}, "n": {**WHOLE, "maximum": 2**63 - 1}},
        },
        [
            f'{{"id": {2**60 + 1}}}',
            f'{{"id": {2**60 + 1}, "n": -5, "x": [], "y": 1}}',
            f'{{"id": {2**60 + 1}, "t": "a"}}',
        ],
        ["{}", f'{{"id": {2**60}}}', f'{{"id": {2**60 + 1}, "\\u006e": 0}}', f'{{"id": {2**60 + 1}, "n": 0, "n": 0}}'],
    ),
    (
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": {"type": "array", "prefixItems": [{"const": 2**60 + 1}], "items": {"$ref": "#/$defs/n"}}},
        },
        ["[]", f"[{2**60 + 1}, []]", f"[{2**60 + 1}, [], [{2**60 + 1}]]"],
        [f"[{2**60}]", "[[]]", f"[{2**60 + 1}, {2**60 + 1}]"],
    ),
    (
        {"type": "array", "items": {"const": 2**60 + 1}, "minItems": 2, "maxItems": 3},
        [f"[{2**60 + 1}, {2**60 + 1}]"],
        ["[]", f"[{2**60 + 1}]", "[" + ", ".join([f"{2**60 + 1}"] * 4) + "]"],
    ),
    ({"allOf": [{**WHOLE, "minimum": 0, "maximum": 2**63 - 1}, {"multipleOf": 5}]}, ["0", "5"], ["3", "-5"]),
    # Numbers that are no doubles, in schemas that are joined.
    ({"allOf": [{"const": ID}, WHOLE, {"maximum": 2**63 - 1}]}, [f"{ID}"], [f"{ID - 1}", f"{ID + 1}"]),
    (
        {"$ref": "#/$defs/id", "maximum": ID + 2, "$defs": {"id": {"type": ["integer", "null"], "minimum": ID}}},
        [f"{ID}", f"{ID + 2}", "null"],
        [f"{ID - 1}", f"{ID + 3}", '"a"'],
    ),
    (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"id": {**WHOLE, "minimum": ID}},
            "allOf": [{"$ref": "#/definitions/id"}, {"exclusiveMaximum": ID + 2}],
        },
        [f"{ID}", f"{ID + 1}"],
        [f"{ID - 1}", f"{ID + 2}"],
    ),
    (
        {**WHOLE, "oneOf": [{"maximum": ID}, {"minimum": ID + 1, "maximum": 2**64 - 1}]},
        [f"{ID}", f"{ID + 1}", "-1", f"{2**64 - 1}"],
        [f"{2**64}", "1.5"],
    ),
    (
        {"allOf": [{"enum": [*range(ID, ID + 300), "a"]}, {"minimum": ID + 5}, {"maximum": ID + 200}]},
        [f"{ID + 5}", f"{ID + 200}", '"a"'],
        [f"{ID + 4}", f"{ID + 201}", '"b"'],
    ),
    ({**WHOLE, "minimum": 0, "maximum": 2**63 - 1, "multipleOf": 7}, ["0", f"{2**63 - 1}"], ["8", f"{2**63 - 2}"]),
    ({**WHOLE, "minimum": -(2**63), "multipleOf": 1}, ["0", f"{2**62}"], ["0.5"]),
    ({**WHOLE, "minimum": -(10**18), "multipleOf": 3}, ["0", "999"], ["1"]),
    (
        {
            "type": "object",
            "anyOf": [{"properties": {"id": {**WHOLE, "minimum": ID}}, "required": ["id"]}],
            "properties": {"id": {"maximum": ID + 1}, "s": {"type": "string", "pattern": "^a*$"}},
            "additionalProperties": False,
        },
        [f'{{"id": {ID}}}', f'{{"id": {ID + 1}, "s": "aa"}}'],
        ["{}", f'{{"id": {ID + 2}}}', f'{{"id": {ID}, "s": "b"}}', f'{{"id": {ID}, "t": 1}}'],
    ),
    (
        {"allOf": [{"properties": {"id": {"const": ID}}, "required": ["id"]}, {"properties": {"n": {"$ref": "#"}}}]},
        [f'{{"id": {ID}, "n": {{"id": {ID}, "n": 3}}}}', "3", f'{{"id": {ID}, "x": 1}}'],
        [f'{{"id": {ID}, "n": {{}}}}', f'{{"id": {ID - 1}}}'],
    ),
    (
        {"type": "array", "prefixItems": [{"minimum": ID}], "allOf": [{"items": {**WHOLE, "maximum": ID + 1}}]},
        ["[]", f"[{ID}, 5]"],
        ["[5]", f"[{ID}, {ID + 2}]", f"[{ID + 2}]", '["a"]'],
    ),
    # What stands beside a reference holds, also behind another one.
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"maximum": 7, "$ref": "#/$defs/b"}, "b": {**WHOLE, "minimum": -ID}}},
        ["7", f"{-ID}"],
        ["75", f"{-ID - 1}"],
    ),
    # Two choices of objects of which one lists a name that the other has among its others.
    (
        {
            "anyOf": [
                {"properties": {"a": {"const": ID}}, "required": ["a"], "type": "object"},
                {"additionalProperties": {"const": ID + 1}, "type": "object"},
            ]
        },
        [f'{{"a": {ID}}}', f'{{"a": {ID + 1}}}', f'{{"a": {ID}, "b": 1}}'],
        [f'{{"a": {ID + 2}}}', '{"b": 1}'],
    ),
    # A closed object beside an open one.
    (
        {**OPEN, "additionalProperties": False, "anyOf": [{"required": ["a"]}]},
        ['{"a": 4}'],
        ['{"a": 4, "zz": 2}', "{}"],
    ),
    (
        {"$ref": "#/$defs/x", "properties": {"b": WHOLE}, "$defs": {"x": {**OPEN, "additionalProperties": False}}},
        ['{"a": 4}', "{}"],
        ['{"b": 4}', '{"a": 4, "zz": 2}'],
    ),
    # Keywords behind a choice belong to those in front of it.
    (
        {**OPEN, "allOf": [{"required": ["a"]}], "additionalProperties": {"type": "string"}},
        ['{"a": 4, "b": "x"}'],
        ['{"b": "x"}', '{"a": 4, "b": 3}'],
    ),
    # What says nothing refuses nothing.
    ({**OPEN, "propertyNames": {"type": "string"}, "dependentRequired": {}, "dependencies": {}}, ["{}"], ["[]"]),
    ({**OPEN, "propertyNames": {}, "if": {"required": ["a"]}, "not": False, "minContains": 2}, ["{}"], ["[]"]),
    ({"type": "array", "contains": {}}, ["[1]"], ["[]"]),
    ({"type": "array", "contains": {}, "minContains": 2, "maxContains": 3}, ["[1, 2]"], ["[1]", "[1, 2, 3, 4]"]),
]


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    return BPETokenizer.from_checkpoint(Checkpoint(EMBEDDED_MODEL))


@each_of(("schema", "valid", "invalid"), VERDICTS, ids=lambda value: json.dumps(value)[:40])
def test_a_text_is_taken_only_where_it_is_valid(
    tokenizer: BPETokenizer, schema: Any, valid: list[str], invalid: list[str]
) -> None:
    vocabulary = GrammarVocabulary(tokenizer, tokenizer.vocab_size)
    form = compiled(Grammar(kind="json_schema", source=json.dumps(schema), param=""), vocabulary).source

    def takes(text: str) -> bool:
        matcher = LLMatcher(vocabulary.compiled, form, log_level=0, limits=LIMITS)
        ids = tokenizer.encode(text)
        return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()

    assert [text for text in valid if not takes(text)] == []
    assert [text for text in invalid if takes(text)] == []


@each_of(
    "schema",
    [
        {"oneOf": [{**WHOLE, "maximum": ID}, {**WHOLE, "minimum": ID}]},
        {"allOf": [{"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, {"const": ID}]},
        {"allOf": [{"const": ID}, {"const": ID + 1}]},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {**WHOLE, "minimum": ID}},
         "oneOf": [{"$ref": "#/definitions/a", "maximum": ID + 5}, {**WHOLE, "minimum": ID + 6}]},
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_written_without_joins_is_refused(tokenizer: BPETokenizer, schema: Any) -> None:
    """A oneOf whose choices share a value, or may: up to draft 7 nothing holds beside a $ref; and what has no value."""
    vocabulary = GrammarVocabulary(tokenizer, tokenizer.vocab_size)
    with pytest.raises(ChatError):
        compiled(Grammar(kind="json_schema", source=json.dumps(schema), param=""), vocabulary)


def test_strict_holds_all_properties_and_no_others(tokenizer: BPETokenizer) -> None:
    vocabulary = GrammarVocabulary(tokenizer, tokenizer.vocab_size)
    source = json.dumps({**OPEN, "properties": {"a": WHOLE, "b": {"type": "null"}}})
    form = compiled(Grammar(kind="json_schema", source=source, param="", strict=True), vocabulary).source
    taken = []
    for text in ('{"a": 1, "b": null}', '{"a": 1}', '{"a": 1, "b": null, "c": 1}', "{}"):
        matcher = LLMatcher(vocabulary.compiled, form, log_level=0, limits=LIMITS)
        ids = tokenizer.encode(text)
        taken.append(
            matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()
        )
    assert taken == [True, False, False, False]
