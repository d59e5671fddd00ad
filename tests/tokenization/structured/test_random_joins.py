"""Random schemas that join numbers of 64 bits: what a form takes is valid, and what is valid is taken.

`make long` has jsonschema judge 3,000 of them, with decimals kept whole; a sample is judged by the rules of the draft.
"""

import importlib
import itertools
import json
import random
import sys
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest

from tests.e2e.running import REPO
from tests.tokenization.structured.test_random_schemas import Forms, Judge, exact, fits, look_at_objects, read
from tokenization.chat.errors import ChatError

EDGES = (2**53 + 9, 2**60 + 1, 2**63 - 1, 2**63, 2**64 - 1)
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
STEPS = (2, 3, 2.5)
TYPES: tuple[Any, ...] = ("integer", "integer", "number", ["integer", "null"], ["number", "string"], None)


@pytest.fixture(scope="module")
def forms() -> Forms:
    return Forms()


class Drawn:
    """Draws schemas whose numbers lie around one edge, so that they have values in common."""

    def __init__(self, seed: int) -> None:
        self.chosen = random.Random(seed)

    def number(self, edge: int) -> int:
        return edge + self.chosen.randint(-4, 4)

    def leaf(self, edge: int) -> dict[str, Any]:
        chosen, kind = self.chosen, self.chosen.choice(TYPES)
        found: dict[str, Any] = {} if kind is None else {"type": kind}
        share = chosen.random()
        if share < 0.15:
            found["enum"] = [self.number(edge) for _ in range(chosen.choice((1, 4, 300)))] + [None, "a", 2.5]
        elif share < 0.25:
            found = {"const": self.number(edge)}
        else:
            ends: dict[str, Any] = {chosen.choice(BOUNDS[::2]): self.number(edge)}
            if chosen.random() < 0.5:
                ends["maximum"] = chosen.choice((self.number(edge) + 3, edge + 2**40, 2**64 - 1))
            if chosen.random() < 0.2:
                ends = {"minimum": chosen.choice((-1.5, 0, -(2**63))), chosen.choice(BOUNDS[1::2]): edge + 2}
            found |= ends
        return found

    def join(self, edge: int) -> dict[str, Any]:
        """Keywords beside a choice, a reference, or all of several."""
        chosen = self.chosen
        one = self.leaf(edge) if chosen.random() < 0.7 else {}
        for keyword in chosen.sample(("allOf", "anyOf", "oneOf", "$ref"), chosen.choice((1, 1, 2))):
            several = [self.leaf(edge) for _ in range(chosen.randint(1, 3))]
            if keyword == "oneOf" and chosen.random() < 0.7:
                cut = self.number(edge)
                several = [{"type": "integer", "maximum": cut}, {"type": "integer", "minimum": cut + 1}]
            one[keyword] = "#/$defs/x" if keyword == "$ref" else several
        return one

    def schemas(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Each with the edge that its numbers lie around."""
        chosen = self.chosen
        while True:
            edge = chosen.choice((1, 1, -1)) * chosen.choice(EDGES)
            of, leaf, share = self.join(edge), self.leaf(edge), chosen.random()
            if share < 0.2:
                other = {"properties": {"n": leaf, "s": {"type": "string"}}}
                of = {"type": "object", "required": ["n"], "allOf": [{"properties": {"n": of}}, other]}
            elif share < 0.3:
                of = {"type": "array", "items": of, "allOf": [{"items": leaf, "minItems": 1, "maxItems": 2}]}
            elif share < 0.45 and 0 < edge < 2**63:
                of |= {"type": "integer", "minimum": 0, "maximum": 2**63 - 1, "multipleOf": chosen.choice(STEPS)}
            yield {**of, "$defs": {"x": self.leaf(edge)}}, edge


def values(schema: Any, edge: int) -> Iterator[str]:
    """Texts that may be values, drawn without the compiler."""
    form = {"object": '{"n": %s}', "array": "[%s]"}.get(str(schema.get("type")), "%s")
    numbers = [*range(edge - 9, edge + 10), 0, 7, 10 * edge, edge + 2**39]
    for text in [*map(str, numbers), "null", '"a"', "2.5", "-1.5"]:
        yield form % text


def is_valid(schema: Any, value: Any, root: Any = None) -> bool:
    """Whether a value is valid by the keywords that `Drawn` writes, as the draft says of each of them."""
    root = root or schema
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    kind = {dict: "object", list: "array", str: "string", type(None): "null"}.get(type(value), "number")
    types = schema.get("type", [kind])
    types = [types] if isinstance(types, str) else types
    listed = schema.get("enum", [schema["const"]] if "const" in schema else [value])
    parts = [kind in types or ("integer" in types and is_number and value == int(value)), value in listed]
    if is_number:
        parts += [
            value >= schema.get("minimum", value), value <= schema.get("maximum", value),
            "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"],
            "exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"],
            "multipleOf" not in schema or Fraction(value) % Fraction(schema["multipleOf"]) == 0,
        ]  # fmt: skip
    if isinstance(value, dict):
        parts += [name in value for name in schema.get("required", ())]
        parts += [is_valid(of, value[name], root) for name, of in schema.get("properties", {}).items() if name in value]
    if isinstance(value, list):
        parts += [schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 99)]
        parts += [is_valid(schema.get("items", {}), one, root) for one in value]
    parts += [is_valid(one, value, root) for one in schema.get("allOf", ())]
    parts += [any(is_valid(one, value, root) for one in schema["anyOf"])] if "anyOf" in schema else []
    parts += [sum(is_valid(one, value, root) for one in schema["oneOf"]) == 1] if "oneOf" in schema else []
    parts += [is_valid(root["$defs"]["x"], value, root)] if "$ref" in schema else []
    return all(parts)


def look_at_joins(forms: Forms, count: int, judge: Judge, seed: int = 55) -> tuple[int, int, list[str], list[str]]:
    """(values that are taken, values, schemas with a value that are refused, what is wrong)."""
    drawn, taken, offered, refused, wrong = Drawn(seed), 0, 0, list[str](), list[str]()
    for schema, edge in itertools.islice(drawn.schemas(), count):
        whole = exact(schema)
        texts = [text for text in values(schema, edge) if judge(whole, read(text))]
        try:
            matcher = forms.matcher(schema)
        except ChatError as error:
            refused += [f"{json.dumps(schema)}: {texts[0]} is valid, but {error.message}"] if texts else []
            continue
        answers = [forms.drawn(matcher, drawn.chosen) for _ in range(4)]
        others = [text for text in values(schema, edge) if text not in texts and forms.takes(matcher, text)]
        for text in [*others, *(one for one in answers if one is not None and not judge(whole, read(one)))]:
            wrong.append(f"{json.dumps(schema)}: takes {text}")
        for text in texts:
            offered += 1
            taken += forms.takes(matcher, text)
            if not forms.takes(matcher, text):
                print(f"{json.dumps(schema)}: {text} is not taken")
    return taken, offered, refused, wrong


def test_joined_numbers_are_held_to_the_digit(forms: Forms) -> None:
    taken, offered, refused, wrong = look_at_joins(forms, 60, is_valid)
    assert wrong == []
    assert [one for one in refused if "oneOf" not in one] == []
    assert taken == offered > 100


def test_joined_objects_are_held_where_a_number_of_theirs_is_large(forms: Forms) -> None:
    done, lost, wrong = look_at_objects(forms, 25, fits, 2**63 - 1)
    assert wrong == []
    assert done > 8 and lost == 0


@pytest.mark.long
def test_random_joins_are_held_as_jsonschema_judges(forms: Forms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(REPO / "build" / "schemas")])
    validators: Any = importlib.import_module("jsonschema.validators")

    def judge(schema: Any, value: Any) -> bool:
        with localcontext() as context:
            context.prec = 400  # of a remainder of long numbers
            return bool(validators.Draft202012Validator(schema).is_valid(value))

    taken, offered, refused, wrong = look_at_joins(forms, 3_000, judge)
    print(f"{taken} of {offered} valid values are taken, {len(refused)} schemas are refused")
    assert wrong == [] and [one for one in refused if "oneOf" not in one] == []
    assert taken >= 0.999 * offered
    done, lost, wrong = look_at_objects(forms, 300, judge, 2**63 - 1)
    print(f"objects: {done} compiled, {lost} valid ones are taken in no order")
    assert wrong == [] and done > 100 and lost == 0
