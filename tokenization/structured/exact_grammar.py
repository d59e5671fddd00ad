"""A JSON schema as rules in Lark, for whole numbers that are no doubles: of a schema's, the compiler makes doubles.

Each part of a schema that has none of them is left to the compiler, as `%json`. What of the others is joined with
something else (`allOf`, choices beside other keywords) cannot be written so.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from math import ceil, floor
from typing import Any

from tokenization.structured.numbers import as_written, decimals, is_large, multiples, whole_numbers
from tokenization.structured.schema import BOUNDS, HELD, TYPES, at, reached, subschemas

# Between the tokens of JSON: what `json.dumps` writes, by the key of a schema under which the library takes options.
OPTIONS = "x-guidance"
BLANKS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Names that a schema does not list. The compiler spells what a pattern says in one way; else "\\u0061" would pass for a
# name that is not "a".
OTHER_NAMES = r"^[^\x00-\x1f\x7f]*$"
_OBJECT = frozenset({"properties", "required", "additionalProperties", "patternProperties"})
_ARRAY = frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems"})
_NUMBER = BOUNDS | {"multipleOf"}
_NAME = r'/"([^"\\\x00-\x1f\x7f]|\\["\\])*"/'  # of a property, in its one spelling
_MAX_COUNTED = 1000  # elements of a list that are counted


class Unwritable(Exception):
    """A schema that no rules are written for."""


def json_form(schema: Any) -> str:
    """A schema as the compiler reads it within a grammar in Lark."""
    return f"%json {json.dumps({**schema, OPTIONS: BLANKS} if isinstance(schema, dict) else {OPTIONS: BLANKS})}"


def schema_rules(schema: Any, prefix: str) -> tuple[str, list[str]]:
    """What a rule in Lark says for a schema that `make_compilable` has changed, and the rules that this needs."""
    if not has_large(schema):
        return json_form(schema), []
    grammar = ExactGrammar(schema, prefix)
    try:
        return grammar.write(schema), grammar.lines
    except Unwritable:
        return json_form(schema), []


def is_written(schema: Any) -> bool:
    """Whether rules can be written for it."""
    try:
        return bool(ExactGrammar(schema, "").write(schema))
    except Unwritable:
        return False


def has_large(schema: Any) -> bool:
    """Whether a schema that `make_compilable` has changed needs rules: a number in it is read as another one."""
    return isinstance(schema, dict) and any(is_large(one) for one, _ in reached(schema))


def is_plain(schema: Mapping[str, Any]) -> bool:
    """Whether the compiler reads it rightly by itself: no such number in it, and no reference out of it."""
    left: list[Any] = [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if "$ref" in one or is_large(one):
                return False
            left += [inner for _, inner in subschemas(one)]
    return True


class ExactGrammar:
    """Writes rules, each part of a schema once, so that a reference may lead back."""

    def __init__(self, root: Any, prefix: str) -> None:
        """root: a schema that `make_compilable` has changed. prefix: of the names of all rules."""
        self.lines: list[str] = []
        self._root, self._prefix = root, prefix
        self._rules: dict[int, str] = {}
        self._terminals: dict[str, str] = {}

    def write(self, schema: Any) -> str:
        """What a rule says for a schema: a name, or a form of the compiler. Raises Unwritable."""
        if schema is False:
            raise Unwritable
        if schema is True or is_plain(schema):
            return json_form(schema)
        if id(schema) not in self._rules:
            rule = self._rules[id(schema)] = self._named()
            alternatives = [*self._alternatives(schema)]
            if not alternatives:
                raise Unwritable
            self._rule(" | ".join(alternatives), rule)
        return self._rules[id(schema)]

    def _named(self) -> str:
        return f"{self._prefix}{len(self._rules) + len(self.lines)}"

    def _rule(self, text: str, name: str = "") -> str:
        name = name or self._named()
        self.lines.append(f"{name}: {text}")
        return name

    def _terminal(self, text: str) -> str:
        if text not in self._terminals:
            self._terminals[text] = self._rule(text, self._named().upper())
        return self._terminals[text]

    def _alternatives(self, schema: Mapping[str, Any]) -> Iterator[str]:
        says = schema.keys() & HELD.keys() - {"$schema"}
        own = says - {"type"}
        named = schema.get("type", sorted(TYPES - {"integer"}))
        types = {named} if isinstance(named, str) else {*named}
        others = set(types)
        if own and own <= {"const", "enum"} and len(own) == 1:
            if values := self._values(schema, types):
                yield self._terminal(" | ".join(values))  # as rules, more than 2,000 are too many for a step
            return
        if says == {"$ref"}:
            yield self.write(at(self._root, schema["$ref"])[0])
            return
        if len(says) == 1 and (keyword := next(iter(says))) in ("anyOf", "allOf"):
            if keyword == "allOf" and len(schema[keyword]) > 1:
                raise Unwritable
            yield from (self.write(one) for one in schema[keyword] if one is not False)
            return
        if not own <= _OBJECT | _ARRAY | _NUMBER:
            raise Unwritable
        if own & _NUMBER and types & {"integer", "number"}:
            yield from self._decimal(schema) if "number" in types else self._whole(schema)
            others -= {"integer", "number"}
        if own & _OBJECT and "object" in types:
            yield self._object(schema)
            others -= {"object"}
        if own & _ARRAY and "array" in types:
            yield self._array(schema)
            others -= {"array"}
        if others:
            yield json_form({"type": sorted(others)})

    def _values(self, schema: Mapping[str, Any], types: set[str]) -> list[str]:
        kinds = {str: {"string"}, bool: {"boolean"}, type(None): {"null"}, list: {"array"}, dict: {"object"},
                 int: {"integer", "number"}, float: {"number"}}  # fmt: skip
        values = [schema["const"]] if "const" in schema else schema["enum"]
        fit = [value for value in values if kinds[type(value)] & types]
        return [_quoted(json.dumps(as_written(value), ensure_ascii=False)) for value in fit]

    def _whole(self, schema: Mapping[str, Any]) -> Iterator[str]:
        low, high = schema.get("minimum"), schema.get("maximum")  # of decimals, where a place is looked for
        low, high = None if low is None else ceil(Decimal(low)), None if high is None else floor(Decimal(high))
        if "multipleOf" not in schema:
            if (numbers := whole_numbers(low, high)) is None:
                raise Unwritable
            yield self._terminal(f"/{numbers}/")
            return
        if (found := multiples(low, high, schema["multipleOf"])) is None or not any(found):
            raise Unwritable
        inner, listed = found
        if inner is not None:
            yield json_form({"type": "integer", **inner})
        if listed:
            yield self._terminal(" | ".join(_quoted(str(one)) for one in listed))

    def _decimal(self, schema: Mapping[str, Any]) -> Iterator[str]:
        numbers = decimals(schema.get("minimum"), schema.get("maximum"))
        if numbers is None or "multipleOf" in schema:
            raise Unwritable
        yield self._terminal(f"/{numbers}/")

    def _object(self, schema: Mapping[str, Any]) -> str:
        """Properties in the order of the schema, then others."""
        properties, required = schema.get("properties", {}), schema.get("required", ())
        patterns = schema.get("patternProperties", {})
        if not patterns.keys() <= {OTHER_NAMES} or (not patterns and schema.get("additionalProperties", False)):
            raise Unwritable
        others = patterns.get(OTHER_NAMES, False)
        listed = {name: inner for name, inner in properties.items() if inner is not False or name in required}
        listed.update({name: others for name in required if name not in properties})
        more = "" if others is False else self._other_pair([*properties, *required], others)
        # Of what follows the first property that is there, and of what may be the first: from the last one on.
        following, first = (f'(", " {more})*', f'({more} (", " {more})*)?') if more else ('""', '""')
        for name, inner in reversed(listed.items()):
            # As long as the name of an other object is: of two terminals the library takes the longer one alone.
            pair = f'{_quoted(json.dumps(name, ensure_ascii=False))} ": " {self.write(inner)}'
            may_lack = name not in required
            first = self._rule(f"{pair} {following}" + (f" | {first}" if may_lack else ""))
            following = self._rule(f'", " {pair} {following}' + (f" | {following}" if may_lack else ""))
        return f'"{{" {first} "}}"'

    def _other_pair(self, names: Iterable[str], schema: Any) -> str:
        taken = " | ".join(_quoted(json.dumps(name, ensure_ascii=False)) for name in dict.fromkeys(names))
        name = self._terminal(f"{_NAME} & ~({taken})" if taken else _NAME)
        return self._rule(f'{name} ": " {self.write(schema)}')

    def _array(self, schema: Mapping[str, Any]) -> str:
        items = schema.get("items", True)
        prefix = [*schema.get("prefixItems", ()), *(items if isinstance(items, list) else ())]
        rest = schema.get("additionalItems", True) if isinstance(items, list) else items
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if rest is False:
            most = len(prefix) if most is None else min(most, len(prefix))
        if max(least, most or 0) > _MAX_COUNTED or (most is not None and least > most):
            raise Unwritable
        elements = [*prefix] if most is None else prefix[:most]
        fewest = max(0, least - len(elements))
        counted = f"{fewest}," if most is None else f"{fewest},{most - len(elements)}"
        has_rest = rest is not False and (most is None or most > len(elements))
        following = f'(", " {self.write(rest)}){{{counted}}}' if has_rest else '""'
        for i, inner in reversed([*enumerate(elements)][1:]):
            following = self._rule(f'", " {self.write(inner)} {following}' + ("" if i < least else ' | ""'))
        if elements:
            first = f"{self.write(elements[0])} {following}"
        elif has_rest:
            more = f"{max(0, least - 1)}," if most is None else f"{max(0, least - 1)},{most - 1}"
            first = f'{self.write(rest)} (", " {self.write(rest)}){{{more}}}'
        else:
            first = '""'
        return f'"[" ({first}) "]"' if least else f'"[" ({first})? "]"'


def _quoted(text: str) -> str:
    return json.dumps(text)
