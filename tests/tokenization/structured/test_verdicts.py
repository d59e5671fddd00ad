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
from tokenization.chat.grammar import Grammar
from tokenization.structured.compile import compiled
from tokenization.structured.vocabulary import LIMITS, GrammarVocabulary
from tokenization.text.bpe import BPETokenizer

WHOLE = {"type": "integer"}
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
