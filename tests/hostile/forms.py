"""Two hundred forms of an answer that are made to cost or to break: schemas, regexes, choices and grammars."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Form = tuple[str, Any]  # a key of structured_outputs, and its value
KEYWORDS = (
    "type", "enum", "properties", "patternProperties", "additionalProperties", "required", "items", "prefixItems",
    "minItems", "maxLength", "pattern", "format", "minimum", "multipleOf", "anyOf", "$ref", "$schema",
)  # fmt: skip
WRONG: tuple[Any, ...] = (3, "x", [3], {"x": 3}, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileForm:
    """One body of POST /v1/chat/completions. It is refused, or answered within max_tokens."""

    name: str
    body: bytes


def nested(depth: int, keyword: str, *, as_list: bool = False) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {keyword: [schema] if as_list else schema}
    return schema


def doubled(keyword: str, depth: int, last: dict[str, Any]) -> dict[str, Any]:
    """2^depth ways through as many definitions."""
    names = {str(i): {keyword: [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(depth)}
    return {"$ref": "#/$defs/0", "$defs": {**names, str(depth): last}}


def squared(depth: int, keyword: str, n: int) -> dict[str, Any]:
    """Lists of lists, or texts, n^depth long."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, keyword: n}
    return schema


def schemas() -> Iterator[tuple[str, Any]]:
    for keyword, wrong in itertools.product(KEYWORDS, WRONG):
        yield f"{keyword} is {wrong}", {keyword: wrong}
    for depth in (60, 150):
        yield f"{depth} lists", nested(depth, "items")
        yield f"{depth} choices", nested(depth, "anyOf", as_list=True)
    for keyword, depth in (("anyOf", 30), ("allOf", 30), ("oneOf", 30), ("anyOf", 500)):
        yield f"2^{depth} {keyword}", doubled(keyword, depth, {"type": "string"})
    yield "2^14 objects at once", {
        "allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(14)],
    }  # fmt: skip
    yield "itself", {"$ref": "#"}
    yield "a pair of references", {
        "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    }  # fmt: skip
    yield "itself among choices", {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    yield "itself, always", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    yield "itself in itself", {"allOf": [{"$ref": "#"}, {"type": "string"}]}
    yield "lists of itself", {"type": "array", "items": {"$ref": "#"}, "minItems": 2}
    for place in ("http://127.0.0.1:1/", "file:///etc/passwd", "data:,{}", "a.json", "#a", "#/nowhere", "#/%zz", "//x"):
        yield f"a reference to {place}", {"$ref": place}
    yield "no schema at the place", {"$ref": "#/title", "title": "x"}
    yield "a chain of references", {
        "$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(5000)},
    }  # fmt: skip
    yield "60,000 values", {"enum": [f"value {i}" for i in range(60_000)]}
    yield "20,000 numbers", {"enum": list(range(20_000))}
    yield "objects as values", {"enum": [{"a": {"b": [i] * 20}} for i in range(500)]}
    yield "a text of 900,000", {"const": "é" * 450_000}
    yield "4,000 names", {"type": "object", "properties": {f"name {i}": {"type": "string"} for i in range(4_000)}}
    yield "4,000 names, all of them", {
        "type": "object", "properties": {f"{i}": {} for i in range(4_000)}, "required": [f"{i}" for i in range(4_000)],
    }  # fmt: skip
    yield "a name of 100,000", {"type": "object", "properties": {"n" * 100_000: {}}, "required": ["n" * 100_000]}
    yield "no name, NUL and an escape", {"properties": {"": {}, "\x00": {}, "\x1b[31m": {}}}
    for n in (10**6, 10**9, 2**31, 2**63, 10**30):
        yield f"{n} items at least", {"type": "array", "items": {"type": "null"}, "minItems": n}
        yield f"{n} items at most", {"type": "array", "items": {"type": "null"}, "maxItems": n}
        yield f"{n} characters at least", {"type": "string", "minLength": n}
        yield f"{n} characters at most", {"type": "string", "maxLength": n}
        yield f"multiples of {n}", {"type": "integer", "multipleOf": n}
        yield f"from {n}", {"type": "number", "minimum": n, "maximum": n + 1}
    yield "a thousand properties", {"type": "object", "minProperties": 1000, "maxProperties": 2000}
    yield "1000^4 items", squared(4, "minItems", 1000)
    yield "at most 1000^4 items", squared(4, "maxItems", 1000)
    yield "a very small number", {"type": "number", "minimum": 1e-300, "maximum": 2e-300}
    yield "no number", {"type": "integer", "minimum": 1, "exclusiveMaximum": 2, "multipleOf": 2}
    yield "nothing", {"type": "string", "enum": [1], "const": None}
    yield "false inside", {"type": "object", "properties": {"a": False}, "required": ["a"]}
    for i, pattern in enumerate(patterns()):
        yield f"pattern {i}", {"type": "string", "pattern": pattern}
    yield "300 patterns at once", {"allOf": [{"pattern": f"a.*{i}.*b"} for i in range(300)]}
    yield "a pattern, a format, a length", {
        "type": "string", "format": "uuid", "pattern": "^.*a.*b.*c.*$", "minLength": 30, "maxLength": 5_000,
    }  # fmt: skip
    yield "200 names by pattern", {
        "type": "object", "patternProperties": {f"^{i}.*x.*": {} for i in range(200)}, "additionalProperties": False,
    }  # fmt: skip
    yield "options for the compiler", {"x-guidance": {"lenient": True, "whitespace_pattern": ".*"}, "not": {}}
    yield "a draft nobody knows", {"$schema": "http://127.0.0.1:1/schema"}


def patterns() -> Iterator[str]:
    yield "^(a{1000}){1000}$"
    yield "((((a{50}){50}){50}){50}){50}"
    yield "^(a|a)*$"
    yield "^(a|aa|aaa)*b(a|aa)*c$"
    yield "^(a*)*b$"
    yield "(.*a){30}"
    yield "[a-z]*" * 300
    yield "(x+x+)+y"
    yield ".*.{500}.*"
    yield "[\\u0000-\\uffff]{2000}"
    yield "\\p{L}{3000}"
    yield "(?=a)b"
    yield "(?<=a)b"
    yield "(a)\\1"
    yield "(?P<a>a)(?P<a>b)"
    yield "[.*"
    yield "(" * 20_000
    yield "(" * 5_000 + "a" + ")" * 5_000
    yield "a{99999999999}"
    yield "a{1,0}"
    yield "|".join(f"word{i}" for i in range(10_000))
    yield "(" + "|".join(f".*{i}" for i in range(300)) + "){5}"
    yield "a" * 500_000
    yield "\\xff\\x00"
    yield "\\ud800"
    yield "^$"
    yield "\u202e\U0001f600{50}"


def larks() -> Iterator[str]:
    yield "start: start"
    yield "start: start start"
    yield 'start: a\na: b\nb: a | "x"'
    yield "start: x"
    yield "start: "
    yield "start"
    yield ":" * 1000
    yield 'start: "'
    yield 'start: "a" "b'
    yield "start: /(/"
    yield "start: /(a{1000}){1000}/"
    yield "start: /(?=a)b/"
    yield "start: ((((((((((" * 500
    yield "start: " + "(" * 3_000 + '"a"' + ")" * 3_000
    yield "start: " + " | ".join(f'"{i}"' for i in range(20_000))
    yield "start: " + " ".join(['("a" | "b")?'] * 3_000)
    yield "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(40)) + '\nr40: "a"'
    yield "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(20_000)) + '\nr20000: "a"'
    yield 'start: "a"{100000000}'
    yield 'start: ("a"{1000}){1000}'
    yield 'start: "a"~1..100000000'
    yield "start: <|im_end|>"
    yield "start: <[0]>"
    yield "start: <[99999999999]>"
    yield "start: %json {}"
    yield 'start: %json {"$ref":"file:///etc/passwd"}'
    yield "start: %json " + "[" * 5_000
    yield "%import common.WORD\nstart: WORD"
    yield "%import /etc/passwd\nstart: passwd"
    yield '%llguidance {"no_forcing": false, "x": 1}\nstart: "a"'
    yield '%llguidance {"allow_initial_skip": true}\n%ignore /.*/\nstart: "a"'
    yield "start: @other"
    yield 'start[capture="x", max_tokens=0]: /.*/'
    yield 'start[stop=/.*/]: "a"\n'
    yield "start: /.*/ & ~/.*/"
    yield "start: ~(" * 200
    yield 'start: "\\uD800"'
    yield 'start: "\x01\x02\x7f"'
    yield "start: s\ns: " + " | ".join(["s s"] * 500) + ' | "a"'


def ebnfs() -> Iterator[str]:
    yield "root ::= root"
    yield "root ::= root root"
    yield "root ::= nowhere"
    yield "root ::="
    yield "::="
    yield 'root ::= "'
    yield "root ::= [a-"
    yield "root ::= [^" + "a" * 10_000 + "]*"
    yield "root ::= " + "(" * 5_000 + '"a"' + ")" * 5_000
    yield 'root ::= "a"{1000000}'
    yield 'root ::= ("a" | "a")* ("a" | "a")* "b"'
    yield "root ::= " + " | ".join(f'"{i}"' for i in range(20_000))
    yield "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)) + '\nr40 ::= "a"'


def choices() -> Iterator[Any]:
    yield [f"choice {i}" for i in range(60_000)]
    yield ["é" * 100_000, "b"]
    yield [""]
    yield ["\x01", "\x7f", "\u2028"]
    yield ['"', "\\", "a\nb", "/*", "<|im_end|>", "start:"]
    yield ["a" * i for i in range(1, 1_200)]
    yield {"a": 1}
    yield [None]
    yield [["a"]]


def forms() -> Iterator[HostileForm]:
    """All of them, each with a name of its own."""
    kinds: list[tuple[str, Iterator[tuple[str, Any]]]] = [
        ("json", schemas()),
        ("regex", ((f"regex {i}", one) for i, one in enumerate(patterns()))),
        ("grammar", ((f"lark {i}", one) for i, one in enumerate(larks()))),
        ("grammar", ((f"ebnf {i}", one) for i, one in enumerate(ebnfs()))),
        ("choice", ((f"choice {i}", one) for i, one in enumerate(choices()))),
    ]
    for key, values in kinds:
        for name, value in values:
            yield HostileForm(name=name, body=body(json.dumps({key: value}).encode()))
    for name, outputs in (
        ("a schema of 200,000 brackets", b'{"json":"' + b"[" * 200_000 + b'"}'),
        ("a schema as deep as that", b'{"json":' + b'{"items":' * 20_000 + b"{}" + b"}" * 20_001),
        ("a regex of 10 MB", b'{"regex":"' + b"(a|b)" * 2_000_000 + b'"}'),
        ("a schema of 10 MB", b'{"json":{"const":"' + b"a" * 10_000_000 + b'"}}'),
        ("a grammar of 10 MB", b'{"grammar":"' + b"start: a " * 1_100_000 + b'"}'),
        ("half a character", b'{"regex":"\\ud800"}'),
        ("half a character in a name", b'{"json":{"properties":{"\\udfff":{}}}}'),
        ("NUL", b'{"regex":"a\\u0000b"}'),
        ("NUL in a text of JSON", b'{"json":"{\\u0000}"}'),
        ("NaN in a text of JSON", b'{"json":"{\\"minimum\\":NaN,\\"const\\":1e999}"}'),
        ("a number of 10,000 digits", b'{"json":"{\\"const\\":' + b"9" * 10_000 + b'}"}'),
        ("a name said twice", b'{"json":"{\\"type\\":\\"string\\",\\"type\\":3}"}'),
    ):
        yield HostileForm(name=name, body=body(outputs))


def body(outputs: bytes) -> bytes:
    return (
        b'{"messages":[{"role":"user","content":"x"}],"max_tokens":8,"temperature":1,"seed":1,"structured_outputs":'
        + outputs
        + b"}"
    )
