"""A JSON schema as the compiler takes it: with OpenAI's strict form, exclusive choices, and no hints without a rule."""

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import combinations
from typing import Any

from tokenization.structured.exact_grammar import OTHER_NAMES, Unwritable, has_large, is_written
from tokenization.structured.joined import without_joins
from tokenization.structured.numbers import MAX_MULTIPLE, hold_bounds, narrow
from tokenization.structured.schema import (
    FORMATS,
    HELD,
    NOT_HELD,
    Path,
    Unsupported,
    at,
    follow,
    pointer,
    reached,
    subschemas,
    unsupported,
)

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_LONG, _SHORT = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DATE = f"(?:{_YEAR}-(?:{_LONG}|{_SHORT}|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_CLOCK})"
# RFC 3339 without leap seconds; the compiler's own let 29 February and second 60 be where they cannot.
TIMES = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
OBJECT = frozenset({"properties", "required", "additionalProperties"})
DEEPEST = 4  # of properties in properties, by which two schemas are told apart
MOST_CHOICES = 64  # of a oneOf: each two of them are compared
CHOICES = ("anyOf", "oneOf", "allOf")
MAX_NESTED_CHOICES = 1024  # choices that lead to further ones: about 10 ms of a mask

Scalars = frozenset[tuple[str, Any]]


def make_compilable(schema: Any, *, strict: bool = False) -> Unsupported | None:
    """Change a schema in place to one that asks for the same and that the compiler takes; or say what is not held.

    strict: an object has the properties that are listed, all of them, and no others, wherever it does not say so.
    """
    if (found := unsupported(schema)) is not None or isinstance(schema, bool):
        return found
    schemas = reached(schema)
    if strict and (found := _close(schemas)) is not None:
        return found
    for one, _ in schemas:
        if one.get("format") not in FORMATS - TIMES.keys() and (time := TIMES.get(one.pop("format", ""))) is not None:
            one.setdefault("allOf", []).append({"pattern": time})
        one.pop("uniqueItems", None)  # false
        one.pop("$id", None)  # the root's: references begin with #
        _drop_silent(one)
        if one.keys() & OBJECT and one.get("additionalProperties") is not False:
            one["patternProperties"] = {OTHER_NAMES: one.get("additionalProperties", True)}
            one["additionalProperties"] = False
        choices = one.get("oneOf", ())
        _drop_common_null(choices)
        if "anyOf" not in one and 1 <= len(choices) <= MOST_CHOICES and _exclusive(schema, choices):
            one["anyOf"] = one.pop("oneOf")
    if (found := _too_many_choices(schema, schemas) or _too_large_multiples(schema, schemas)) is not None:
        return found
    is_joined = any(_n_parts(one) > 1 for one, _ in schemas)
    for one, _ in schemas:
        if is_joined and one.get("additionalProperties") is False and "patternProperties" not in one:
            # The compiler joins what two objects say of one pattern, and takes every pattern of either.
            one["patternProperties"] = {OTHER_NAMES: False}
        hold_bounds(one)
        for keyword in (*CHOICES, "$ref"):
            # Last: the compiler reads what stands behind a choice as one more schema, which knows of no properties.
            if keyword in one:
                one[keyword] = one.pop(keyword)
    return _write_without_joins(schema) if has_large(schema) and not is_written(schema) else None


def _write_without_joins(schema: dict[str, Any]) -> Unsupported | None:
    """Change a schema whose large numbers are joined with others, in place; where that cannot be, round them."""
    try:
        found = without_joins(schema)
    except (Unwritable, RecursionError):
        return narrow(reached(schema))
    if found is None:
        return Unsupported(pointer="", keyword="", reason="no value is valid by it")
    schema.clear()
    schema.update(found)
    return None


def _drop_silent(schema: dict[str, Any]) -> None:
    """Take out the keywords that `unsupported` lets pass for what they do not say, or that others say as well."""
    if "contains" in schema:  # anything
        least, most = schema.get("minContains", 1), schema.get("maxContains")
        schema["minItems"] = max(least, schema.get("minItems", 0))
        if most is not None:
            schema["maxItems"] = min(most, schema.get("maxItems", most))
    for keyword in schema.keys() & NOT_HELD.keys():
        del schema[keyword]


def _n_parts(schema: dict[str, Any]) -> int:
    """How many schemas a value is to fit at once by one schema: its own keywords count as one."""
    own = schema.keys() & (HELD.keys() - {*CHOICES, "$ref", "$schema"})
    return bool(own) + sum(keyword in schema for keyword in ("anyOf", "oneOf", "$ref")) + len(schema.get("allOf", ()))


def _too_large_multiples(root: Any, schemas: list[tuple[dict[str, Any], Path]]) -> Unsupported | None:
    """The first schema by which a value is a multiple of two numbers that the compiler cannot multiply."""
    given = sorted({Fraction(one["multipleOf"]) for one, _ in schemas if "multipleOf" in one})
    if len(given) < 2 or int(given[-1] * _unit(given)) * int(given[-2] * _unit(given)) <= MAX_MULTIPLE:
        return None
    for one, path in schemas:
        parts = [{Fraction(one["multipleOf"])} if "multipleOf" in one else set[Fraction]()]
        for keyword in CHOICES:
            inner = [_multiples(root, choice) for choice in one.get(keyword, ())]
            parts += inner if keyword == "allOf" else [set[Fraction]().union(*inner)]
        parts.append(_multiples(root, at(root, one["$ref"])[0]) if "$ref" in one else set())
        for first, second in combinations(parts, 2):
            if any(a != b and _product(a, b) > MAX_MULTIPLE for a in first for b in second):
                reason = "with another multipleOf of the same value it is too large to be held"
                return Unsupported(pointer=pointer((*path, "multipleOf")), keyword="multipleOf", reason=reason)
    return None


def _product(a: Fraction, b: Fraction) -> int:
    """Of both, in the smallest decimal unit that both are whole in."""
    unit = _unit((a, b))
    return int(a * unit) * int(b * unit)


def _unit(numbers: Iterable[Fraction]) -> int:
    """A power of ten by which each of these becomes whole: they are halves of halves."""
    return int(10 ** max((one.denominator - 1).bit_length() for one in numbers))


def _multiples(root: Any, schema: Any) -> set[Fraction]:
    """All that a value may have to be a multiple of by a schema and by its choices."""
    found, left, seen = set[Fraction](), [schema], set[int]()
    while left:
        one = left.pop()
        if isinstance(one, dict) and id(one) not in seen:
            seen.add(id(one))
            found |= {Fraction(one["multipleOf"])} if "multipleOf" in one else set()
            left += _choices(root, one)
    return found


def innermost(schema: Any, fails: Callable[[Any], bool], most: int = 64) -> Path:
    """The path of a smallest schema that `fails` by itself too, beside the definitions of the whole one that does.

    fails: whether the compiler does not take a schema; it is asked at most so often.
    """
    path: Path = ()
    around = {name: schema[name] for name in ("$defs", "definitions", "$schema") if name in schema}
    left: list[tuple[Path, Any]] = list(subschemas(schema))
    for keyword in ("$defs", "definitions"):
        if isinstance(named := schema.get(keyword), dict):
            left += [((keyword, name), inner) for name, inner in named.items()]
    while left and most:
        way, inner = left.pop(0)
        most -= 1
        if isinstance(inner, dict) and fails({**inner, **around}):
            path, left = path + way, list(subschemas(inner))
    return path


def _too_many_choices(root: Any, schemas: list[tuple[dict[str, Any], Path]]) -> Unsupported | None:
    """The first schema from which too many choices lead to further choices, before a character is read.

    The compiler follows all of them at each character that begins a value, and the time of that grows with the square
    of their number and more: 1,600 such choices take 30 ms over 150,000 words, 10,000 take 2.8 s.
    """
    choices = {id(one): _choices(root, one) for one, _ in schemas}
    # By schema, those of its choices that have choices themselves, each once.
    nested = {key: {id(one): one for one in found if choices.get(id(one))} for key, found in choices.items()}
    inner = {key for found in nested.values() for key in found}
    seen: set[int] = set()
    # A schema that is no other one's choice reaches most. What is left then leads to itself.
    for one, path in sorted(schemas, key=lambda place: id(place[0]) in inner):
        if id(one) in seen:
            continue
        left, reached_here, n = [id(one)], {id(one)}, 0
        while left:
            found = nested.get(left.pop(), {})
            n += len(found)
            if n > MAX_NESTED_CHOICES:
                reason = f"more than {MAX_NESTED_CHOICES} choices in a row lead to further choices"
                keyword = next(name for name in (*CHOICES, "$ref") if name in one)
                return Unsupported(pointer=pointer((*path, keyword)), keyword=keyword, reason=reason)
            left += found.keys() - reached_here
            reached_here |= found.keys()
        seen |= reached_here
    return None


def _choices(root: Any, schema: dict[str, Any]) -> list[dict[str, Any]]:
    """What a value may be by a schema's own choices: behind their references, and what stands beside those."""
    found = list[Any]()
    for one in (schema, *(one for name in CHOICES for one in schema.get(name, ()))):
        chain = [one]
        while isinstance(chain[-1], dict) and "$ref" in chain[-1]:
            chain.append(at(root, chain[-1]["$ref"])[0])
        found += [one for one in chain if isinstance(one, dict) and ("$ref" not in one or _says_more(one))]
    return [one for one in found if one is not schema]


def _says_more(schema: dict[str, Any]) -> bool:
    """Whether something holds beside a reference."""
    return not schema.keys().isdisjoint(HELD.keys() - {"$ref", "$schema"})


def _close(schemas: list[tuple[dict[str, Any], Path]]) -> Unsupported | None:
    """OpenAI's strict form, where a schema does not say otherwise; where it does, that."""
    for one, path in schemas:
        if len(one.get("allOf", ())) > 1 or ("allOf" in one and "properties" in one):
            return _not_strict(path, "allOf", "strict closes each object, and closed ones have nothing in common")
        if "patternProperties" in one or one.get("additionalProperties", False) is not False:
            keyword = "patternProperties" if "patternProperties" in one else "additionalProperties"
            return _not_strict(path, keyword, "strict lets an object have the properties that are listed alone")
        if "object" not in _types(one) and "properties" not in one:
            continue
        if "properties" not in one and one.get("additionalProperties") is not False and "$ref" not in one:
            return _not_strict(path, "type", "strict asks for the properties of each object")
        one["additionalProperties"] = False
        one["required"] = list(dict.fromkeys((*one.get("properties", ()), *one.get("required", ()))))
    return None


def _not_strict(path: Path, keyword: str, reason: str) -> Unsupported:
    return Unsupported(pointer=pointer((*path, keyword)), keyword=keyword, reason=reason)


def _drop_common_null(choices: list[Any]) -> None:
    """Null by two of the choices is no value of theirs: exactly one is to fit."""
    nullable = [one for one in choices if isinstance(one, dict) and isinstance(one.get("type"), list)]
    nullable = [one for one in nullable if "null" in one["type"] and len(one["type"]) > 1]
    for one in nullable if len(nullable) > 1 else ():
        one["type"] = [kind for kind in one["type"] if kind != "null"]


def _exclusive(root: Any, choices: list[Any]) -> bool:
    return all(_apart(root, a, b, DEEPEST) for a, b in combinations(choices, 2))


def _apart(root: Any, a: Any, b: Any, depth: int) -> bool:
    """Whether it is certain that no value is valid by both."""
    if a is False or b is False:
        return True
    if depth == 0 or not isinstance(a, dict) or not isinstance(b, dict):
        return False
    a, b = follow(root, a), follow(root, b)
    if not isinstance(a, dict) or not isinstance(b, dict):
        return False
    if _types(a) and _types(b) and not _types(a) & _types(b):
        return True
    of_a, of_b = _values(a), _values(b)
    if of_a is not None and of_b is not None:
        return not of_a & of_b
    if _types(a) != {"object"} or _types(b) != {"object"}:
        return False
    return _lacks(a, b) or _lacks(b, a) or any(
        _apart(root, a.get("properties", {}).get(name), b.get("properties", {}).get(name), depth - 1)
        for name in {*a.get("required", ())} & {*b.get("required", ())}
    )  # fmt: skip


def _lacks(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether b needs a property that a does not allow."""
    closed = a.get("additionalProperties") is False and "patternProperties" not in a
    return closed and not {*b.get("required", ())} <= {*a.get("properties", ())}


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """Empty: any. A whole number may be an integer or a number."""
    named = schema.get("type")
    if named is not None:
        types = {named} if isinstance(named, str) else {*named}
        return frozenset(types | ({"integer"} if "number" in types else set()))
    values = _values(schema)
    return frozenset(kind for kind, _ in values) if values is not None else frozenset()


def _values(schema: dict[str, Any]) -> Scalars | None:
    """The values of an enum or const; None where there are none, or a list, an object or a fraction among them."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None or not all(value is None or isinstance(value, str | int) for value in values):
        return None
    kinds = {str: "string", bool: "boolean", int: "integer", type(None): "null"}
    return frozenset((kinds[type(value)], value) for value in values)
