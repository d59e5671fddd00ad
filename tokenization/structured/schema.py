"""What of a JSON schema an answer can be held to, by JSON pointer; where a keyword cannot be, the walk says so."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from tokenization.chat.errors import shortened
from tokenization.structured.pattern import unlike

Path = tuple[str, ...]  # the steps from the whole schema to a place in it

MAX_STEPS = 128  # to a schema, through keywords and names
MAX_REFERENCES = 64  # from one to the next, until a schema says something
MAX_SCHEMAS = 1 << 14
DRAFTS = frozenset({
    "http://json-schema.org/draft-04/schema", "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema", "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
})  # fmt: skip
CONTROLS = re.compile(r"[\x00-\x1f\x7f]")  # characters that JSON spells in more than one way
_PREFIX = re.compile(r"\^((?:[^\\.+*?()|\[\]{}^$]|\\[-./_])*)")  # the pattern of names that begin so


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """One place of a schema that no answer can be held to."""

    pointer: str  # JSON pointer (RFC 6901) to the keyword's value; "" is the whole schema
    keyword: str
    reason: str

    @property
    def told(self) -> str:
        """In one sentence, of a bounded length."""
        place = f"{self.keyword} at {shortened(self.pointer, 200)}" if self.pointer else "the schema itself"
        return f"{place}: {self.reason}"


class NotHeld(Exception):
    """At this keyword of the schema that is looked at; `unsupported` catches it, and lets nothing pass that has one."""

    def __init__(self, keyword: str, reason: str, *steps: str) -> None:
        super().__init__(reason)
        self.found = keyword, reason, steps


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1 << 31


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
COUNT, NUMBER, NAMES, TEXT = "a whole number, 0 or more", "a number", "a list of names", "a text"
SCHEMA, SCHEMAS, MAP, ITEMS = "a schema", "a list of schemas", "an object of schemas", "a schema or a list of schemas"
# The keywords that are held, with what must stand there.
HELD: Mapping[str, str] = {
    "type": "a type's name, or a list of them", "enum": "a list of values", "const": "",
    "properties": MAP, "patternProperties": MAP, "additionalProperties": SCHEMA, "required": NAMES,
    "minProperties": COUNT, "maxProperties": COUNT,
    "items": ITEMS, "prefixItems": SCHEMAS, "additionalItems": SCHEMA, "minItems": COUNT, "maxItems": COUNT,
    "uniqueItems": "true or false",
    "minLength": COUNT, "maxLength": COUNT, "pattern": TEXT, "format": TEXT,
    "minimum": NUMBER, "maximum": NUMBER, "exclusiveMinimum": "a number", "exclusiveMaximum": "a number",
    "multipleOf": "a number above 0",
    "allOf": SCHEMAS, "anyOf": SCHEMAS, "oneOf": SCHEMAS, "$ref": TEXT, "$schema": TEXT,
}  # fmt: skip
FITS: Mapping[str, Callable[[Any], bool]] = {
    COUNT: _is_count,
    NUMBER: _is_number,
    NAMES: _is_names,
    TEXT: lambda value: isinstance(value, str),
    SCHEMA: lambda value: True,  # the walk comes to it
    SCHEMAS: lambda value: isinstance(value, list) and bool(value),
    MAP: lambda value: isinstance(value, dict),
    ITEMS: lambda value: True,
    "true or false": lambda value: isinstance(value, bool),
    "a list of values": lambda value: isinstance(value, list) and bool(value),
    "a number above 0": lambda value: _is_number(value) and value > 0,
    "a type's name, or a list of them": lambda value: (
        value in TYPES if isinstance(value, str) else _is_names(value) and bool(value) and TYPES.issuperset(value)
    ),
    "": lambda value: True,
}
_ELSEWHERE = "a reference goes to a place in the schema itself, as in #/$defs/name"
_NO_WORDS = "what it says of a value is not held while the answer is drawn"
# Keywords of the drafts, and of the compiler, that bind an answer and that no mask of tokens can hold.
NOT_HELD: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired",
            "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties", "unevaluatedItems",
        ),
        _NO_WORDS,
    ),
    **dict.fromkeys(("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"), _ELSEWHERE),
    "x-guidance": "a request does not set the compiler's options",
}  # fmt: skip
FORMATS = frozenset({
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
})  # fmt: skip
# Those of the drafts that have a shape which is not known; every other name is a hint without a rule.
FORMATS_NOT_HELD = frozenset({
    "idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer",
    "relative-json-pointer", "regex",
})  # fmt: skip


def unsupported(schema: Any) -> Unsupported | None:
    """The first keyword, from the root by references, that an answer could not be held to; None: there is none.

    What no reference reaches binds nothing, and is not looked at. Keywords that no draft knows are annotations, as the
    drafts have it.
    """
    left: list[tuple[Any, Path]] = [(schema, ())]
    seen: set[int] = set()
    while left:
        one, path = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        try:
            if len(path) > MAX_STEPS:
                raise NotHeld("", f"it stands more than {MAX_STEPS} steps deep")
            if len(seen) > MAX_SCHEMAS:
                raise NotHeld("", f"there are more than {MAX_SCHEMAS} schemas in it")
            if isinstance(one, bool):
                if not path and not one:
                    raise NotHeld("", "false allows no answer")
                continue
            if not isinstance(one, dict):
                raise NotHeld("", "a schema is an object, true or false")
            _check(one, is_root=not path)
            follow(schema, one)
            target = at(schema, one["$ref"]) if "$ref" in one else None
        except NotHeld as error:
            keyword, reason, steps = error.found
            return Unsupported(pointer=pointer(path + steps), keyword=keyword or _last(path), reason=reason)
        left += [(inner, path + way) for way, inner in reversed(list(subschemas(one)))]
        left += [target] if target is not None else []
    return None


def reached(schema: Any) -> list[tuple[dict[str, Any], Path]]:
    """All schemas that `unsupported` looks at and that are objects, each once. Only for what that finds nothing in."""
    left: list[tuple[Any, Path]] = [(schema, ())]
    seen: set[int] = set()
    found: list[tuple[dict[str, Any], Path]] = []
    while left:
        one, path = left.pop()
        if not isinstance(one, dict) or id(one) in seen:
            continue
        seen.add(id(one))
        found.append((one, path))
        left += [(inner, path + way) for way, inner in subschemas(one)]
        left += [at(schema, one["$ref"])] if "$ref" in one else []
    return found


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Those that stand in a schema's own keywords, each with the steps to it; of definitions none."""
    for keyword, value in schema.items():
        what = HELD.get(keyword)
        if what == MAP:
            yield from (((keyword, name), inner) for name, inner in value.items())
        elif what == SCHEMAS or (what == ITEMS and isinstance(value, list)):
            yield from (((keyword, str(i)), inner) for i, inner in enumerate(value))
        elif what in (SCHEMA, ITEMS):
            yield (keyword,), value


def follow(root: Any, schema: Mapping[str, Any]) -> Any:
    """Where a schema's $ref ends, from one reference to the next; or the schema itself."""
    one: Any = schema
    passed: set[int] = set()
    while isinstance(one, dict) and "$ref" in one:
        if id(one) in passed:
            raise NotHeld("$ref", "the reference comes back to itself, and to no value", "$ref")
        passed.add(id(one))
        one, _ = at(root, one["$ref"])
        if one is schema or len(passed) > MAX_REFERENCES:
            raise NotHeld("$ref", "the reference comes back to itself, and to no value", "$ref")
    return one


def at(root: Any, reference: Any) -> tuple[Any, Path]:
    """What a reference names, and the steps to it."""
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        raise NotHeld("$ref", _ELSEWHERE, "$ref")
    steps = tuple(unquote(step).replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:])
    one = root
    for step in steps:
        if isinstance(one, dict) and step in one:
            one = one[step]
        elif isinstance(one, list) and step.isascii() and step.isdigit() and len(step) < 10 and int(step) < len(one):
            one = one[int(step)]
        else:
            raise NotHeld("$ref", "there is nothing at the place that it names", "$ref")
    return one, steps


def _check(schema: Mapping[str, Any], *, is_root: bool) -> None:
    """Raise NotHeld for the first of its own keywords that is malformed or not held."""
    for keyword, value in schema.items():
        if keyword in NOT_HELD and not _says_nothing(schema, keyword):
            raise NotHeld(keyword, NOT_HELD[keyword], keyword)
        if keyword not in HELD:
            continue
        is_flag = keyword.startswith("exclusive") and isinstance(value, bool)  # as draft 4 has it
        if not is_flag and not FITS[HELD[keyword]](value):
            raise NotHeld(keyword, f"must be {HELD[keyword]}", keyword)
        _check_value(schema, keyword, value)
    if not is_root and isinstance(schema.get("$id"), str):
        raise NotHeld("$id", "only the whole schema has an $id: references begin at its root", "$id")


def _says_nothing(schema: Mapping[str, Any], keyword: str) -> bool:
    """Whether a keyword that is not held lets every value be, or what `minItems` and `maxItems` say as well."""
    value = schema[keyword]
    if keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        return isinstance(value, dict) and all(one == [] or is_free(one) for one in value.values())
    if keyword == "propertyNames":
        return is_free(value) or (isinstance(value, dict) and value.get("type") == "string" and is_free(
            {name: inner for name, inner in value.items() if name != "type"}))  # fmt: skip
    if keyword == "contains":
        return is_free(value) and all(_is_count(schema.get(name, 0)) for name in ("minContains", "maxContains"))
    if keyword in ("minContains", "maxContains"):
        return _is_count(value) and ("contains" not in schema or _says_nothing(schema, "contains"))
    if keyword in ("unevaluatedProperties", "unevaluatedItems"):
        return is_free(value)
    if keyword == "not":
        return value is False
    if keyword == "if":
        return not schema.keys() & {"then", "else"} or all(is_free(schema.get(one, True)) for one in ("then", "else"))
    if keyword in ("then", "else"):
        return "if" not in schema or is_free(value)
    return False


def _check_value(schema: Mapping[str, Any], keyword: str, value: Any) -> None:
    if keyword == "uniqueItems" and value:
        raise NotHeld(keyword, _NO_WORDS, keyword)
    if keyword == "format" and value in FORMATS_NOT_HELD:
        raise NotHeld(keyword, f"{value} is not known; {', '.join(sorted(FORMATS))} are", keyword)
    if keyword in ("pattern", "patternProperties"):
        for pattern in [value] if isinstance(value, str) else value:
            if (why := unlike(pattern)) is not None:
                raise NotHeld(keyword, why, *((keyword,) if isinstance(value, str) else (keyword, pattern)))
    if keyword == "$schema" and value.removesuffix("#") not in DRAFTS:
        raise NotHeld(keyword, "drafts 4, 6, 7, 2019-09 and 2020-12 are known, by their own addresses", keyword)
    if keyword == "multipleOf" and not float(value * (1 << 16)).is_integer():
        raise NotHeld(keyword, "must be whole, or halves of halves: other fractions have no exact multiples", keyword)
    if keyword == "properties" and (name := next(filter(CONTROLS.search, value), None)) is not None:
        raise NotHeld(keyword, "a name with a control character has several spellings", keyword, name)
    if keyword == "patternProperties":
        _check_names(schema, value)
    if keyword == "minProperties" and value > _n_required(schema) + 1:
        raise NotHeld(
            keyword, "is not held where names that are not listed would count: one may be said twice", keyword
        )


def _check_names(schema: Mapping[str, Any], patterns: Mapping[str, Any]) -> None:
    """Raise NotHeld where a name could pass by a pattern: the compiler takes each by its first rule alone."""
    if all(is_free(inner) for inner in patterns.values()) and is_free(schema.get("additionalProperties", True)):
        return
    if schema.get("additionalProperties", True) is not False:
        reason = "is held where additionalProperties is false: there a name has one spelling"
        raise NotHeld("patternProperties", reason, "patternProperties")
    names = schema.get("properties")
    for pattern, inner in patterns.items():
        prefix = _PREFIX.fullmatch(pattern)
        begin = None if prefix is None else prefix[1].replace("\\", "")
        if (
            not is_free(inner)
            and isinstance(names, dict)
            and (begin is None or any(name.startswith(begin) for name in names))
        ):
            reason = "binds names that properties may list too; what both say of one is not held"
            raise NotHeld("patternProperties", reason, "patternProperties", pattern)


def is_free(schema: Any) -> bool:
    """Whether a schema says nothing of a value."""
    return schema is True or (isinstance(schema, dict) and not schema.keys() & (HELD.keys() | NOT_HELD.keys()))


def _n_required(schema: Mapping[str, Any]) -> int:
    required = schema.get("required")
    return len({*required}) if _is_names(required) and required else 0


def pointer(path: Path) -> str:
    """The JSON pointer of a path (RFC 6901)."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in path)


def _last(path: Path) -> str:
    """The keyword that a schema at this path stands in."""
    return next((step for step in reversed(path) if step in HELD), "$defs" if path else "")
