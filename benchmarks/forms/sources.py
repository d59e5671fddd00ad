"""Forms of an answer that are drawn at random, and forms that are made to cost, behind texts of many lengths."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenization.chat.grammar import GrammarKind

LENGTHS = (0, 1, 10, 100, 400, 1_500, 5_000)  # characters in front of what costs
FORMATS = ("date", "time", "date-time", "email", "ipv4", "uuid", "uri", "hostname", "duration")
CLASSES = ("[a-z]", "[0-9]", "[A-Z_]", "[a-zA-Z0-9 ]", "[^x-z]")
COUNTS = ("", "", "", "?", "*", "+", "{2}", "{1,3}", "{0,8}", "{3,}")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form as a request names it, and how to come to the place in it that costs."""

    name: str
    kind: GrammarKind
    source: str
    before: str = ""  # an answer begins so
    text: str = ""  # of that, what the form was put behind
    keep: str = ""  # tokens of these characters alone keep the answer where it costs; "": any do


class RandomForms:
    """Draws forms without end. Some have no answer, or an answer that cannot end."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __iter__(self) -> Iterator[Form]:
        makers: dict[GrammarKind, Callable[[], str]] = {
            "json_schema": self._root, "regex": lambda: self._regex(3), "choice": self._choices,
            "lark": lambda: self._grammar("start: ", ": ", "/{}/"),
            "ebnf": lambda: self._grammar("root ::= ", " ::= ", "{}"),
        }  # fmt: skip
        while True:
            kind = self._random.choices(tuple(makers), (10, 4, 2, 2, 2))[0]
            yield Form(name="random", kind=kind, source=makers[kind]())

    def _upto(self, most: int, least: int = 1) -> range:
        return range(self._random.randint(least, most))

    def _word(self) -> str:
        return "".join(self._random.choice(LETTERS) for _ in self._upto(9))

    def _root(self) -> str:
        self._n_named = self._random.randint(0, 4)
        named = {str(i): self._schema(2) for i in range(self._n_named)}
        return json.dumps({**self._schema(4), **({"$defs": named} if named else {})})

    def _schema(self, depth: int) -> dict[str, Any]:
        leaves = (self._text, self._number, self._enum)
        inner = (self._object, self._object, self._list, self._any)
        if self._n_named and self._random.random() < 0.1 and depth < 4:
            return {"$ref": f"#/$defs/{self._random.randrange(self._n_named)}"}
        if depth == 0 or (depth < 4 and self._random.random() < 0.4):
            return self._random.choice(leaves)()
        return self._random.choice(inner)(depth - 1)

    def _object(self, depth: int) -> dict[str, Any]:
        properties = {self._word(): self._schema(depth) for _ in self._upto(8)}
        required = [name for name in properties if self._random.random() < 0.5]
        closed: dict[str, Any] = {"additionalProperties": False}
        more = self._random.choice(({}, closed, closed, {"additionalProperties": self._enum()}))
        return {"type": "object", "properties": properties, "required": required, **more}

    def _list(self, depth: int) -> dict[str, Any]:
        first = {"prefixItems": [self._schema(depth) for _ in self._upto(4)]} if self._random.random() < 0.2 else {}
        least, most = sorted((self._random.randint(0, 6), self._random.choice((1, 5, 30, 1_000))))
        bounds = self._random.choice(
            ({}, {"minItems": least}, {"maxItems": most}, {"minItems": least, "maxItems": most})
        )
        return {"type": "array", "items": self._schema(depth), **first, **bounds}

    def _any(self, depth: int) -> dict[str, Any]:
        keyword = self._random.choice((*["anyOf"] * 8, "oneOf", "allOf"))
        return {keyword: [self._schema(depth) for _ in self._upto(6, 2)]}

    def _text(self) -> dict[str, Any]:
        return {"type": "string"} | self._random.choice((
            {}, {"maxLength": self._random.choice((1, 20, 300, 4_000))}, {"minLength": self._random.randint(1, 40)},
            {"pattern": f"^{self._regex(2)}$"}, {"pattern": self._regex(1)}, {"format": self._random.choice(FORMATS)},
        ))  # fmt: skip

    def _number(self) -> dict[str, Any]:
        least = self._random.randint(-1_000, 1_000)
        return {"type": self._random.choice(("integer", "number"))} | self._random.choice((
            {}, {"minimum": least}, {"minimum": least, "maximum": least + 10 ** self._random.randint(0, 9)},
            {"exclusiveMaximum": least}, {"multipleOf": self._random.randint(1, 60)},
        ))  # fmt: skip

    def _enum(self) -> dict[str, Any]:
        values = [self._random.choice((self._word(), self._random.randint(0, 999), None, True)) for _ in self._upto(40)]
        return self._random.choice(({"enum": values}, {"const": values[0]}, {"type": "boolean"}, {"type": "null"}))

    def _regex(self, depth: int) -> str:
        kinds = (self._word(), self._word(), self._random.choice(CLASSES), r"\d", r"\.", "-", ".")
        parts = [self._random.choice(kinds) for _ in self._upto(4)]
        if depth and self._random.random() < 0.6:
            parts.append("|".join(self._regex(depth - 1) for _ in self._upto(4)))
        self._random.shuffle(parts)
        return "".join(f"({part}){self._random.choice(COUNTS)}" for part in parts)

    def _choices(self) -> str:
        return json.dumps(
            [" ".join(self._word() for _ in self._upto(4)) for _ in self._upto(self._random.choice((5, 90, 3_000)))]
        )

    def _grammar(self, start: str, sign: str, character: str) -> str:
        """Rules lead to any rule, mostly behind a text; one choice of each leads to later ones alone."""
        n = self._random.randint(1, 12)

        def sequence(first: int) -> str:
            """Its first rule is one from `first` on, or none."""
            begin = [f'"{self._word()}"'] if self._random.random() < 0.8 else []
            rules = [f"r{self._random.randrange(first, n)}" for _ in self._upto(3, 0) if first < n]
            between = [
                character.format(self._random.choice(CLASSES)) + self._random.choice(COUNTS) for _ in self._upto(2)
            ]
            optional = f"({self._random.choice(between)} {begin[0]}){self._random.choice(COUNTS)}" if begin else '"."'
            return " ".join((*begin, *rules, *between, optional))

        rules = [
            f"r{i}{sign}"
            + " | ".join((sequence(i + 1), *(sequence(self._random.randrange(n)) for _ in self._upto(3, 0))))
            for i in range(n)
        ]
        return "\n".join((f"{start}r0", *rules))


def repeated(text: str, n: int, between: str) -> str:
    """The text n times, `#` in it replaced by 0 to n - 1 and `@` by the number behind that."""
    return between.join(text.replace("#", str(i)).replace("@", str(i + 1)) for i in range(n))


def ambiguous(n: int) -> str:
    return '"a" | ' + " | ".join(" ".join(["e"] * (1 + i % 3)) + ' "a"' for i in range(n))


def circle(n: int) -> dict[str, Any]:
    """Each value is one of all others, or an object of its own."""
    return {"$ref": "#/$defs/0", "$defs": {str(i): {"anyOf": [
        *({"$ref": f"#/$defs/{j}"} for j in range(n) if j != i),
        {"type": "object", "properties": {f"k{i}": {"$ref": "#/$defs/0"}}, "required": [f"k{i}"],
         "additionalProperties": False},
    ]} for i in range(n)}}  # fmt: skip


def lists(n: int) -> dict[str, Any]:
    """n lists of the same, which their ends alone tell apart."""
    ends = ({"type": "array", "items": {"$ref": "#/$defs/0"}, "minItems": i} for i in range(n))
    return {"$ref": "#/$defs/0", "$defs": {"0": {"anyOf": [*ends]}}}


def lookalikes(n: int) -> dict[str, Any]:
    """n objects that begin alike, at every depth."""
    alike = [{"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}, f"b{i}": {"const": i}}} for i in range(n)]
    return {"$ref": "#/$defs/0", "$defs": {"0": {"anyOf": alike}}}


def patterns(n: int) -> dict[str, Any]:
    return {"anyOf": [{"type": "string", "pattern": f"^[a-z]*x[a-z]{{{i % 20}}}i{i}$"} for i in range(n)]}


def counted(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": {"type": "null"}, "maxItems": n}
    for _ in range(3):
        schema = {"type": "array", "items": {"anyOf": [schema, {"type": "array", "items": schema}]}, "maxItems": n}
    return schema


# Name: kind, two sizes, characters that keep an answer where it costs, and what the rule `e`, a schema, a regex or
# the list of choices is by its size.
Costly = tuple[GrammarKind, tuple[int, int], str, Callable[[int], Any]]
COSTLY: dict[str, Costly] = {
    "ambiguous": ("lark", (3, 9), "a", ambiguous),
    "ambiguous EBNF": ("ebnf", (3, 9), "a", ambiguous),
    "itself twice": ("lark", (1, 20), "a", lambda n: repeated("e e", n, " | ") + ' | "a"'),
    "operators": ("lark", (2, 9), "a+", lambda n: repeated('e "+" e', n, " | ") + ' | "a"'),
    "left recursion": (
        "lark", (30, 200), "a", lambda n: "r0\n" + repeated('r#: r@ | r# "a"', n, "\n") + f'\nr{n}: "a"',
    ),
    "left recursion EBNF": (
        "ebnf", (30, 200), "a", lambda n: "r0\n" + repeated('r# ::= r@ | r# "a" | r@ r#', n, "\n") + f'\nr{n} ::= "a"',
    ),
    "nullable": (
        "lark", (10, 50), "a", lambda n: "x*\nx: " + repeated("y#", n, " ") + "\n" + repeated('y#: "a"?', n, "\n"),
    ),
    "counted": ("lark", (8, 40), "a", lambda n: f'x{{0,{n}}}\nx: y{{0,{n}}}\ny: "a"{{0,{n}}}'),
    "brackets": ("lark", (10, 100), "(", lambda n: '""' + repeated(' | "(" e ")#" e', n, "")),
    "words": ("lark", (30, 300), "a", lambda n: "w*\nw: " + " | ".join(f'"{"a" * (i + 1)}"' for i in range(n))),
    "terminals": (
        "lark", (30, 300), LETTERS, lambda n: "(" + repeated("T#", n, " | ") + ")*\n"
        + "\n".join(f"T{i}: /[a-z]*x[a-z]{{{i % 20}}}i{i}/" for i in range(n)),
    ),
    "a long memory": ("lark", (10, 17), "ab", lambda n: f"T*\nT: /[ab]*a[ab]{{{n}}}c/"),
    "classes EBNF": (
        "ebnf", (3, 12), LETTERS, lambda n: "w*\nw ::= " + " | ".join("[a-z]+ " * (i + 1) for i in range(n)),
    ),
    "a regex's memory": ("regex", (10, 17), "ab", lambda n: f"(a|b)*a(a|b){{{n}}}c"),
    "a regex's choices": ("regex", (30, 300), LETTERS, lambda n: "(" + repeated("[a-z]*x[a-z]{9}i#", n, "|") + ")*"),
    "choices": ("choice", (300, 9_000), "a", lambda n: [f"{'a' * (i % 90)}{i}" for i in range(n)]),
    "circle": ("json_schema", (20, 31), '{"k0123456789: ', circle),
    "lists": ("json_schema", (5, 40), "[", lists),
    "lookalikes": ("json_schema", (10, 200), '{"a: ', lookalikes),
    "patterns": ("json_schema", (30, 300), LETTERS, patterns),
    "counted lists": ("json_schema", (8, 60), "[null, ", counted),
}  # fmt: skip


def costly_forms(seed: int) -> list[Form]:
    """Every kind in two sizes behind each of LENGTHS, in an order that the seed draws."""
    drawn = random.Random(seed)
    text = "".join(drawn.choice(LETTERS + " ") for _ in range(max(LENGTHS)))
    forms = [
        _behind(text[:length], f"{name} {size}", costly, size)
        for name, costly in COSTLY.items() for length in LENGTHS for size in costly[1]
    ]  # fmt: skip
    drawn.shuffle(forms)
    return forms


def _behind(text: str, name: str, costly: Costly, size: int) -> Form:
    kind, _, keep, make = costly
    made, before = make(size), text
    if kind == "json_schema":
        if text:
            defs = {"$defs": made.pop("$defs")} if "$defs" in made else {}
            made = {"type": "object", "properties": {"p": {"const": text}, "v": made}, "required": ["p", "v"],
                    "additionalProperties": False, **defs}  # fmt: skip
            before = json.dumps({"p": text})[:-1] + ', "v": '
        source = json.dumps(made)
        before += '"' if name.startswith("patterns") else ""
    elif kind == "choice":
        source = json.dumps([text + one for one in made])
    elif kind == "regex":
        source = text + made
    else:
        start, sign = ("start: ", ": ") if kind == "lark" else ("root ::= ", " ::= ")
        source = f"{start}{json.dumps(text) if text else ''} e\ne{sign}{made}"
    return Form(name=name, kind=kind, source=source, before=before, text=text, keep=keep)
