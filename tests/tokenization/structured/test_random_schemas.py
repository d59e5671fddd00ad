"""Random schemas of numbers and of joined objects: what a form takes is valid, and what is valid is taken.

`make long` has jsonschema judge 10,000 and 1,000 of them, with decimals kept whole; a sample is judged by arithmetic.
"""

import importlib
import itertools
import json
import random
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from configs.checkpoint import Checkpoint
from configs.settings import EMBEDDED_MODEL
from tests.e2e.running import REPO
from tokenization.chat.errors import ChatError
from tokenization.chat.grammar import Grammar
from tokenization.structured.compile import compiled
from tokenization.structured.vocabulary import LIMITS, GrammarVocabulary
from tokenization.text.bpe import BPETokenizer

Judge = Callable[[Any, Any], bool]  # of a schema and a value
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
EDGES = (0, 1, 7, 100, 2**31, 2**53, 2**53 + 1, 10**17 + 1, 2**63 - 1, 2**63, 2**64 - 1)


class Forms:
    """Compiles schemas over the embedded model's vocabulary."""

    def __init__(self) -> None:
        self.tokenizer = BPETokenizer.from_checkpoint(Checkpoint(EMBEDDED_MODEL))
        self.vocabulary = GrammarVocabulary(self.tokenizer, self.tokenizer.vocab_size)

    def matcher(self, schema: Any) -> LLMatcher:
        """Raises ChatError."""
        grammar = Grammar(kind="json_schema", source=json.dumps(schema), param="")
        return LLMatcher(
            self.vocabulary.compiled, compiled(grammar, self.vocabulary).source, log_level=0, limits=LIMITS
        )

    def takes(self, matcher: LLMatcher, text: str) -> bool:
        own, ids = matcher.deep_copy(), self.tokenizer.encode(text)
        return own.validate_tokens(ids) == len(ids) and own.consume_tokens(ids) and own.is_accepting()

    def drawn(self, matcher: LLMatcher, chosen: random.Random) -> str | None:
        """An answer that ends by itself within 40 tokens."""
        own, ids = matcher.deep_copy(), list[int]()
        while len(ids) < 40:
            bits = np.unpackbits(np.frombuffer(own.compute_bitmask(), np.uint8), bitorder="little")
            assert not own.is_error(), own.get_error()
            left = np.flatnonzero(bits).tolist()
            token = (
                self.vocabulary.end if self.vocabulary.end in left and chosen.random() < 0.4 else chosen.choice(left)
            )
            if token == self.vocabulary.end:
                return b"".join(map(self.tokenizer.token_bytes, ids)).decode()
            ids.append(token)
            own.consume_token(token)
        return None


@pytest.fixture(scope="module")
def forms() -> Forms:
    return Forms()


def read(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def within(schema: Any, value: Any) -> bool:
    """Whether a number is valid by a schema's bounds, or one of its values."""
    if "const" in schema or "enum" in schema:
        return any(value == one for one in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "integer" and value != int(value):
        return False
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    return bool(
        (low is None or value >= low) and (high is None or value <= high)
        and (above is None or value > above) and (below is None or value < below)
    )  # fmt: skip


def numbers(chosen: random.Random) -> Iterator[Any]:
    """Schemas of numbers: bounds that lie near one another, near a whole number, and near what a word can hold."""

    def decimal() -> float | int:
        value = chosen.uniform(-10, 10) if chosen.random() < 0.7 else chosen.uniform(-1e6, 1e6)
        return round(value, chosen.randrange(7)) if chosen.random() < 0.8 else chosen.randint(-20, 20)

    def whole() -> int:
        return chosen.choice((1, -1)) * chosen.choice(EDGES) + chosen.randint(-2, 2)

    while True:
        kind = chosen.choice(("integer", "number", "number"))
        if chosen.random() < 0.1:
            values = [whole() if chosen.random() < 0.5 else decimal() for _ in range(chosen.randint(1, 3))]
            yield {"enum": values} if len(values) > 1 else {"const": values[0]}
            continue
        draw = whole if kind == "integer" or chosen.random() < 0.2 else decimal
        first = draw()
        other = (
            draw()
            if chosen.random() < 0.5
            else first + chosen.choice((1, 3, 1000)) * (1 if draw is whole else chosen.random())
        )
        other = other if isinstance(other, int) else round(other, chosen.randrange(1, 8))
        low, high = sorted((first, other))
        ends = {chosen.choice(BOUNDS[::2]): low, chosen.choice(BOUNDS[1::2]): high}
        for dropped in chosen.sample([*ends], chosen.choice((0, 0, 1))):
            del ends[dropped]
        yield {"type": kind, **ends}


def a_value(schema: Any, chosen: random.Random) -> str | None:
    """A value that is valid, drawn without the compiler, as `json.dumps` writes it."""
    if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
        one = chosen.choice(values)
        return json.dumps(int(one) if one == int(one) else one)
    low = max((schema[key] for key in BOUNDS[::2] if key in schema), default=None)
    high = min((schema[key] for key in BOUNDS[1::2] if key in schema), default=None)
    low = (0 if high is None else high) - 10**6 if low is None else low
    high = low + 10**6 if high is None else high
    if schema["type"] == "integer" or chosen.random() < 0.3 or max(abs(low), abs(high)) > 2**53:
        first, last = -int(-low // 1), int(high // 1)
        value: int | float = chosen.choice((first, first + 1, last - 1, last, chosen.randint(min(first, last), last)))
    else:
        value = chosen.choice((chosen.uniform(low, high), low, high, round(chosen.uniform(low, high), 2)))
    text = format(Decimal(repr(value)), "f")
    return text if within(schema, value) and within(exact(schema), read(text)) else None


def exact(schema: Any) -> Any:
    return read(json.dumps(schema))


def look_at_numbers(forms: Forms, count: int, judge: Judge) -> tuple[int, int, list[str]]:
    """(values that are taken, values, what is wrong) of so many schemas; answers that are no value are wrong."""
    chosen, taken, offered, wrong = random.Random(55), 0, 0, list[str]()
    for schema in itertools.islice(numbers(chosen), count):
        value = a_value(schema, chosen)
        try:
            matcher = forms.matcher(schema)
        except ChatError as error:
            wrong += [f"{schema}: {value} is valid, but {error}"] if value is not None else []
            continue
        for _ in range(3):
            text = forms.drawn(matcher, chosen)
            if text is not None and not judge(exact(schema), read(text)):
                wrong.append(f"{schema}: takes {text}")
        if value is not None:
            offered += 1
            taken += forms.takes(matcher, value)
            if not forms.takes(matcher, value):
                print(f"{schema}: {value} is not taken")
    return taken, offered, wrong


def objects(chosen: random.Random, most: int | None = None) -> Iterator[Any]:
    """Schemas that join open and closed objects of a few names. most: a bound of some of their numbers."""

    def plain() -> dict[str, Any]:
        names = chosen.sample(("a", "b", "c"), chosen.randint(0, 3))
        whole: dict[str, Any] = {"type": "integer"}
        of = [whole, {"type": "integer", "minimum": 3} | ({} if most is None else {"maximum": most}), True]
        one: dict[str, Any] = {"type": "object"} if chosen.random() < 0.7 else {}
        one["properties"] = {name: chosen.choice(of) for name in names}
        if chosen.random() < 0.5:
            one["required"] = chosen.sample(("a", "b"), chosen.randint(1, 2))
        if chosen.random() < 0.6:
            one["additionalProperties"] = chosen.choice((False, False, whole))
        return one

    while True:
        one, definitions = plain(), {"x": plain(), "y": plain()}
        keys = list(one)
        for _ in range(chosen.randint(1, 2)):
            keyword = chosen.choice(("allOf", "anyOf", "oneOf", "$ref"))
            one[keyword] = "#/$defs/x" if keyword == "$ref" else [
                chosen.choice((plain(), {"$ref": "#/$defs/y"})) for _ in range(chosen.randint(1, 2))]  # fmt: skip
        keys = chosen.sample(list(one), len(one))
        yield {**{key: one[key] for key in keys}, "$defs": definitions}


def fits(schema: Any, value: Any, root: Any = None) -> bool:
    """Whether an object is valid, of the keywords that `objects` writes."""
    root = root or schema
    if isinstance(schema, bool):
        return schema
    if schema.get("type") == "integer" and not isinstance(value, int):
        return False
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return False
    parts = [fits(one, value, root) for one in schema.get("allOf", ())]
    parts += [any(fits(one, value, root) for one in schema["anyOf"])] if "anyOf" in schema else []
    parts += [sum(fits(one, value, root) for one in schema["oneOf"]) == 1] if "oneOf" in schema else []
    parts += [fits(root["$defs"][schema["$ref"][-1]], value, root)] if "$ref" in schema else []
    if isinstance(value, dict):
        others = [value[name] for name in value if name not in schema.get("properties", {})]
        parts += [fits(of, value[name], root) for name, of in schema.get("properties", {}).items() if name in value]
        parts += [fits(schema.get("additionalProperties", True), other, root) for other in others]
        parts += [name in value for name in schema.get("required", ())]
    return all(parts)


TEXTS = [
    json.dumps(dict(zip(names, values, strict=True)))
    for n in range(4)
    for names in itertools.permutations(("a", "b", "c", "zz"), n)
    for values in itertools.product((1, 5, "s"), repeat=n)
    if n < 3 or values in ((1, 5, 5), (5, 5, 5), (5, 5, "s"))
]


def look_at_objects(forms: Forms, count: int, judge: Judge, most: int | None = None) -> tuple[int, int, list[str]]:
    """(schemas that compiled, valid objects that are taken in no order of their names, what is wrong)."""
    chosen, done, lost, wrong = random.Random(55), 0, 0, list[str]()
    for schema in itertools.islice(objects(chosen, most), count):
        try:
            matcher = forms.matcher(schema)
        except ChatError:
            continue
        done += 1
        names = {text: frozenset(json.loads(text).items()) for text in TEXTS}
        taken = {text for text in TEXTS if forms.takes(matcher, text)}
        wrong += [f"{json.dumps(schema)}: takes {text}" for text in taken if not judge(schema, json.loads(text))]
        found = {names[text] for text in taken}
        in_all_orders = [text for text in TEXTS if len(names[text]) < 3]
        lost += sum(judge(schema, json.loads(text)) for text in in_all_orders if names[text] not in found)
    return done, lost, wrong


def test_numbers_are_held_to_the_digit(forms: Forms) -> None:
    taken, offered, wrong = look_at_numbers(forms, 150, within)
    assert wrong == []
    assert taken == offered > 80


def test_a_closed_object_stays_closed_beside_an_open_one(forms: Forms) -> None:
    done, lost, wrong = look_at_objects(forms, 25, fits)
    assert wrong == []
    assert done > 8 and lost == 0


@pytest.mark.long
def test_random_schemas_are_held_as_jsonschema_judges(forms: Forms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(REPO / "build" / "schemas")])
    validators: Any = importlib.import_module("jsonschema.validators")

    def judge(schema: Any, value: Any) -> bool:
        return bool(validators.Draft202012Validator(schema).is_valid(value))

    taken, offered, wrong = look_at_numbers(forms, 10_000, judge)
    print(f"numbers: {taken} of {offered} valid values are taken")
    assert wrong == [] and taken >= 0.999 * offered
    done, lost, wrong = look_at_objects(forms, 1_000, judge)
    print(f"objects: {done} compiled, {lost} valid ones are taken in no order")
    assert wrong == [] and done > 300
