"""A JSON schema in which others are joined, written without joins, so that rules can be written for its numbers.

JSON schema lets each keyword say something of a value by itself (2020-12 Core, 7.6 and 10.2.1): `allOf`, and keywords
beside one another, ask that all of it holds; `anyOf` that one of its schemas does; `oneOf` that exactly one does; a
keyword of texts says nothing of a number. So

- a schema is a choice of *cases*: schemas without joins that a value is to be valid by, all at once. `allOf` and `$ref`
  add to each case, `anyOf` multiplies them. `oneOf` is an `anyOf` where no value is valid by two of its schemas, which
  the cases of both together show; any other is refused;
- the schemas of a case are one schema for each type: the narrowest bounds, what all lists of values have in common,
  the common multiple of all steps. Each property, and each place of a list, is in turn joined of several. What has
  no large number and no reference is left to the compiler, which joins it by itself.

What is joined is known by the schemas in it and written once, so one that leads back to itself comes to an end.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, count, product
from math import ceil, floor, gcd, lcm
from typing import Any

from llguidance import LLMatcher

from tokenization.structured.exact_grammar import OTHER_NAMES, Unwritable, has_large, is_plain, schema_rules
from tokenization.structured.numbers import as_written
from tokenization.structured.schema import TYPES, at

Schema = Mapping[str, Any]
Conjunction = tuple[Schema, ...]  # schemas without joins that a value is valid by, all at once

MAX_DEPTH = 48  # of what is joined, in one another
MAX_JOINED = 1000  # in a schema
MAX_CASES = 128  # of each of these
MAX_STEPS = 1 << 16  # cases that are put together, in the whole schema
_JOINS = ("anyOf", "allOf", "$ref", "oneOf")  # as the compiler reads them; but a oneOf sees the others
_KEYWORDS = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "multipleOf"}),  # `hold_bounds` has made open bounds closed ones
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems"}),
    "object": frozenset({
        "properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"}),
}  # fmt: skip
_OWN = frozenset({"type", "enum", "const"}).union(*_KEYWORDS.values())
_KINDS: Mapping[type, str] = {
    str: "string", bool: "boolean", type(None): "null", list: "array", dict: "object", int: "number", float: "number",
}  # fmt: skip


def without_joins(root: Schema) -> dict[str, Any] | None:
    """A schema that `make_compilable` has changed, without joins on the way to its large numbers; None: no value fits.

    Raises Unwritable where that cannot be said, is too large, or is nothing that the compiler takes.
    """
    joiner = _Joiner(root)
    found = joiner.joined([root])
    if found is False:
        return None
    schema = {**found, "$defs": joiner.definitions}
    start, rules = schema_rules(schema, "part")
    if has_large(schema) and not rules:
        raise Unwritable
    if _fault({"lark_grammar": "\n".join((f"start: {start}", *rules))}):
        raise Unwritable
    return schema


class _Joiner:
    def __init__(self, root: Schema) -> None:
        self.definitions: dict[str, Any] = {}
        self._root, self._names = root, count()
        self._found: dict[frozenset[int], Any] = {}  # by the ids of the schemas that are joined
        self._own: dict[int, dict[str, Any]] = {}  # a schema's keywords but for joins, by its id
        self._depth = self._steps = 0
        # Up to draft 7 nothing counts beside a $ref. It is held here, but keeps no two schemas of a oneOf apart.
        self._is_old = "draft-0" in str(root.get("$schema"))

    def joined(self, schemas: Iterable[Any]) -> Any:
        """One schema of the values that are valid by all of these; False where there are none."""
        own = {id(one): one for one in schemas if one is not True}
        if any(one is False for one in own.values()):
            return False
        are_plain = all(map(is_plain, own.values()))
        if are_plain and len(own) < 2:
            return next(iter(own.values()), True)
        key = frozenset(own)
        if key not in self._found:
            if len(self._found) >= MAX_JOINED or self._depth >= MAX_DEPTH:
                raise Unwritable
            name = f"joined-{next(self._names)}"
            self._found[key] = {"$ref": f"#/$defs/{name}"}
            self._depth += 1
            found = self._alternatives([*own.values()], are_plain=are_plain)
            self._depth -= 1
            if found and not are_plain:
                self.definitions[name] = {"anyOf": found}
            else:
                self._found[key] = {"allOf": [*own.values()]} if found else False
        return self._found[key]

    def _alternatives(self, schemas: Sequence[Schema], *, are_plain: bool) -> list[Any]:
        """What a joined schema is a choice of. Of what is left to the compiler it matters whether there is any."""
        depth = self._depth
        try:
            cases: list[Conjunction] = [()]
            for one in schemas:
                cases = self._times(cases, self._cases(one, frozenset()))
            return [*self._written(cases)]
        except Unwritable:
            if not are_plain:
                raise
            self._depth = depth
            return [True]

    def _cases(self, schema: Any, within: frozenset[int]) -> list[Conjunction]:
        """What a schema comes to, each case without joins. within: the schemas that led here, by their ids."""
        if isinstance(schema, bool):
            return [()] if schema else []
        if id(schema) in within:
            raise Unwritable
        within |= {id(schema)}
        own = self._own.setdefault(id(schema), {name: value for name, value in schema.items() if name in _OWN})
        cases: list[Conjunction] = [(own,)] if own else [()]
        for keyword in (name for name in _JOINS if name in schema):
            if keyword == "$ref":
                cases = self._times(cases, self._cases(at(self._root, schema["$ref"])[0], within))
                continue
            choices = [self._cases(one, within) for one in schema[keyword]]
            if keyword == "oneOf":
                self._tell_apart(cases, choices)
            for some in choices if keyword == "allOf" else [[case for found in choices for case in found]]:
                cases = self._times(cases, some)
        return cases

    def _times(self, some: Sequence[Conjunction], others: Sequence[Conjunction]) -> list[Conjunction]:
        """Each of these with each of those, but for what no type of value fits."""
        self._steps += len(some) * len(others)
        if self._steps > MAX_STEPS:
            raise Unwritable
        found: dict[frozenset[int], Conjunction] = {}
        for a, b in product(some, others):
            case = tuple({id(one): one for one in (*a, *b)}.values())
            if _types(case):
                found[frozenset(map(id, case))] = case
        if len(found) > MAX_CASES:
            raise Unwritable
        return [*found.values()]

    def _tell_apart(self, beside: Sequence[Conjunction], choices: Sequence[list[Conjunction]]) -> None:
        """Raise Unwritable where a value may be valid by two of these choices, and by what stands beside them."""
        if self._is_old:
            raise Unwritable
        for a, b in combinations(choices, 2):
            if any(self._written(self._times(beside, self._times(a, b)))):
                raise Unwritable

    def _written(self, cases: Iterable[Conjunction]) -> Iterator[dict[str, Any]]:
        """The schemas of some cases: one for each type, and each set of schemas that have keywords about it."""
        free, seen, numbers = set[str](), set[tuple[str, frozenset[int]]](), list[Any]()
        for case in cases:
            types = _types(case)
            is_listed = any(one.keys() & {"enum", "const"} for one in case)
            for kind in ["enum"] if is_listed else sorted(types):
                keywords = _KEYWORDS.get("number" if kind == "integer" else kind, frozenset())
                about = case if is_listed else tuple(one for one in case if one.keys() & keywords)
                if not about:
                    free.add(kind)
                    continue
                key = kind, frozenset(map(id, about))
                if key in seen:
                    continue
                seen.add(key)
                if is_listed:
                    yield from _listed(case, types)
                    continue
                found = self._of_kind(kind, [{name: one[name] for name in one if name in keywords} for one in about])
                if found is not None and found not in numbers:
                    yield found
                numbers += [found] if kind in ("integer", "number") else []
        if free:
            yield {"type": sorted(free)}

    def _of_kind(self, kind: str, parts: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The values of one type that are valid by all of these; None: there are none."""
        if kind in ("integer", "number"):
            return _number(kind, parts)
        if kind == "string":
            return _text(parts)
        write = self._object if kind == "object" else self._list
        if not all(map(is_plain, parts)):
            return write(parts)
        return (
            {"type": kind, **(parts[0] if len(parts) == 1 else {"allOf": parts})}
            if self._is_any(write, parts)
            else None
        )

    def _is_any(self, write: Callable[[Sequence[Schema]], Any], parts: Sequence[Schema]) -> bool:
        """Whether there is a value, of what is left to the compiler; also where it is not known."""
        depth = self._depth
        try:
            return write(parts) is not None
        except Unwritable:
            self._depth = depth
            return True

    def _object(self, parts: Sequence[Schema]) -> dict[str, Any] | None:
        """Each property is valid by what each schema says of its name: of one that it does not list, as of others."""
        names = dict.fromkeys(name for one in parts for name in one.get("properties", ()))
        required = [*dict.fromkeys(name for one in parts for name in one.get("required", ()))]
        free = [_others(one) for one in parts]
        properties = {
            name: self.joined(
                one.get("properties", {}).get(name, other) for one, other in zip(parts, free, strict=True)
            )
            for name in names
        }
        others = self.joined(free)
        if any(properties.get(name, others) is False for name in required):
            return None
        least = max((one.get("minProperties", 0) for one in parts), default=0)
        most = min((one["maxProperties"] for one in parts if "maxProperties" in one), default=None)
        allowed = sum(one is not False for one in properties.values()) if others is False else None
        if least > len(required) or (most is not None and (allowed is None or most < allowed)):
            raise Unwritable
        return {
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": False, "patternProperties": {OTHER_NAMES: others},
        }  # fmt: skip

    def _list(self, parts: Sequence[Schema]) -> dict[str, Any] | None:
        """Each place is valid by what each schema says of it."""
        least = max(one.get("minItems", 0) for one in parts)
        most = min((one["maxItems"] for one in parts if "maxItems" in one), default=None)
        prefixes, rests = zip(*map(_places, parts), strict=True)
        elements = list[Any]()
        for i in range(max(map(len, prefixes))):
            one = self.joined(own[i] if i < len(own) else rest for own, rest in zip(prefixes, rests, strict=True))
            if one is False:
                break
            elements.append(one)
        rest = False if len(elements) < max(map(len, prefixes)) else self.joined(rests)
        if rest is False:
            most = len(elements) if most is None else min(most, len(elements))
        if most is not None and least > most:
            return None
        found = {"type": "array", "prefixItems": elements, "items": rest, "minItems": least}
        return found if most is None else {**found, "maxItems": most}


def _others(schema: Schema) -> Any:
    """What an object's schema says of names that it does not list; `make_compilable` has written it as a pattern."""
    patterns = schema.get("patternProperties", {})
    if schema.get("additionalProperties") is False:
        if not patterns.keys() <= {OTHER_NAMES}:
            raise Unwritable
        return patterns.get(OTHER_NAMES, False)
    return True  # other patterns say nothing


def _places(schema: Schema) -> tuple[list[Any], Any]:
    """What a list's schema says of its first places, and of the rest."""
    items = schema.get("items", True)
    first = [*schema.get("prefixItems", ()), *(items if isinstance(items, list) else ())]
    return first, schema.get("additionalItems", True) if isinstance(items, list) else items


def _types(case: Conjunction) -> frozenset[str]:
    """The types that a value of a case may have; a number that is whole is an integer."""
    types = TYPES
    for one in case:
        named = one.get("type", TYPES)
        own = {named} if isinstance(named, str) else {*named}
        types &= own | ({"integer"} if "number" in own else set())
    return types - ({"integer"} if "number" in types else set())


def _listed(case: Conjunction, types: frozenset[str]) -> Iterator[dict[str, Any]]:
    """The values that all lists of a case have, and that are valid by the rest of it."""
    lists = [{json.dumps(value, sort_keys=True): value for value in as_written(values)}
             for one in case for values in ([one["const"]] if "const" in one else [], one.get("enum", [])) if values
             ]  # fmt: skip
    first, *others = lists
    values = [value for text, value in first.items() if all(text in other for other in others)]
    fit = [value for value in values if _fits(value, case, types)]
    patterns = [{name: one[name] for name in ("pattern", "format") if name in one} for one in case]
    if patterns := [one for one in patterns if one]:
        texts = [value for value in fit if isinstance(value, str)]
        fit = [value for value in fit if not isinstance(value, str)]
        found = _text([{"enum": texts}, *patterns]) if texts else None
        yield from [found] if found is not None else []
    if fit:
        yield {"enum": fit}


def _fits(value: Any, case: Conjunction, types: frozenset[str]) -> bool:
    """Whether a value is valid, but for patterns of texts. Raises Unwritable of a list or object that is bound."""
    kind = _KINDS[type(value)]
    if kind not in types and not (kind == "number" and "integer" in types and isinstance(value, int)):
        return False
    if kind in ("array", "object") and any(one.keys() & _KEYWORDS[kind] for one in case):
        raise Unwritable
    if kind == "string":
        return all(one.get("minLength", 0) <= len(value) <= one.get("maxLength", len(value)) for one in case)
    return kind != "number" or all(
        one.get("minimum", value) <= value <= one.get("maximum", value)
        and ("multipleOf" not in one or Fraction(repr(value)) % Fraction(one["multipleOf"]) == 0)
        for one in case
    )


def _text(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    least = max(one.get("minLength", 0) for one in parts)
    if any(one.get("maxLength", least) < least for one in parts):
        return None
    found = {"type": "string", **(parts[0] if len(parts) == 1 else {"allOf": parts})}
    return None if _fault({"json_schema": found}).startswith("Unsatisfiable") else found


def _number(kind: str, parts: Sequence[Schema]) -> dict[str, Any] | None:
    """The narrowest bounds, and the least step that is a multiple of all."""
    low = max((_fraction(one["minimum"]) for one in parts if "minimum" in one), default=None)
    high = min((_fraction(one["maximum"]) for one in parts if "maximum" in one), default=None)
    steps = [Fraction(one["multipleOf"]) for one in parts if "multipleOf" in one]
    step = Fraction(lcm(*(one.numerator for one in steps)), gcd(*(one.denominator for one in steps))) if steps else None
    if kind == "integer":
        step = Fraction(step.numerator if step is not None else 1)
    if step is not None:
        low = None if low is None else ceil(low / step) * step
        high = None if high is None else floor(high / step) * step
    if low is not None and high is not None and low > high:
        return None
    found = {"minimum": low, "maximum": high, "multipleOf": None if step == 1 and kind == "integer" else step}
    return {"type": kind, **{name: _plain_number(one) for name, one in found.items() if one is not None}}


def _fraction(number: float) -> Fraction:
    """What a number is as it is written: of 0.1 a tenth, which a double is not."""
    return Fraction(repr(number))


def _plain_number(number: Fraction | int) -> int | float:
    return int(number) if number == int(number) else float(number)


def _fault(form: dict[str, Any]) -> str:
    """Why the compiler takes no such form; "": it does."""
    return LLMatcher.validate_grammar(json.dumps({"grammars": [form]}), None)
