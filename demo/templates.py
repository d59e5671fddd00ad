"""Reads files of question templates and expands one into a string. Knows the notation, not what is asked.

Notation, one template a line: `[a|b]` one of these, `(a|b)` one of these or nothing, `{thing}` a slot for the caller,
`$name` and `@name` a list defined above by a line `$name = a|b`; a list whose name begins with `@` names the medium
(picture, clip or sound). `! ` before a template keeps it out of training, `> ` gives the answer of the lines below it,
`== name` opens a section, `#` a comment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_TOKEN = re.compile(r"[@$][a-z_]+|\{[a-z_]+\}|[\[\]()|]|[^@$\[\]()|{}]+")
_LIST = re.compile(r"([@$][a-z_]+) = (.+)")
_SPACES = re.compile(r"\s+")
_BEFORE_MARK = re.compile(r" (?=[?.,!:？，。])")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several sequences of parts, each as likely as the others; an empty one stands for nothing."""

    options: "tuple[tuple[str | Choice, ...], ...]"
    medium: bool

    def write(self, rng: np.random.Generator, out: list[str]) -> None:
        """Append the strings of one option."""
        for part in self.options[int(rng.random() * len(self.options))]:
            if isinstance(part, str):
                out.append(part)
            else:
                part.write(rng, out)


@dataclass(frozen=True, slots=True)
class Template:
    """One line of a file: `root` its parts, `named` whether each of its strings names the medium."""

    root: Choice
    named: bool
    held_out: bool
    answer: str

    def expand(self, rng: np.random.Generator) -> str:
        """One of its strings, slots still open."""
        out: list[str] = []
        self.root.write(rng, out)
        return _BEFORE_MARK.sub("", _SPACES.sub(" ", "".join(out)).strip())


def _sequence(
    tokens: list[str], lists: Mapping[str, Choice], closing: str
) -> tuple[tuple[tuple[str | Choice, ...], ...], bool]:
    """Alternatives up to `closing`, taken off the end of the reversed tokens; whether all of them name the medium."""
    options: list[tuple[str | Choice, ...]] = []
    parts: list[str | Choice] = []
    while tokens:
        token = tokens.pop()
        if token in ("[", "("):
            inner, medium = _sequence(tokens, lists, "]" if token == "[" else ")")
            nothing = ((),) * len(inner) if token == "(" else ()
            parts.append(Choice((*inner, *nothing), medium and token == "["))
        elif token == closing or token == "|":
            options.append(tuple(parts))
            parts = []
            if token == closing:
                return tuple(options), all(map(_names_medium, options))
        elif token in ("]", ")"):
            raise ValueError(f"{token!r} closes nothing")
        elif token[0] in "@$":
            if token not in lists:
                raise ValueError(f"no list {token}")
            parts.append(lists[token])
        else:
            parts.append(token)
    if closing:
        raise ValueError(f"{closing!r} is missing")
    options.append(tuple(parts))
    return tuple(options), all(map(_names_medium, options))


def _names_medium(parts: tuple[str | Choice, ...]) -> bool:
    return any(isinstance(part, Choice) and part.medium for part in parts)


def parse(text: str, lists: Mapping[str, Choice]) -> Choice:
    """The parts of a template. Raises ValueError where brackets do not match or a list is not defined."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        raise ValueError(f"stray brace or list mark in {text!r}")
    try:
        options, medium = _sequence(tokens[::-1], lists, "")
    except ValueError as error:
        raise ValueError(f"{error} in {text!r}") from None
    return Choice(options, medium)


def read(path: Path) -> dict[str, tuple[Template, ...]]:
    """The sections of a file. Raises ValueError that names the file and what is wrong."""
    lists: dict[str, Choice] = {}
    sections: dict[str, list[Template]] = {}
    name, answer = "", ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith("== "):
            name, answer = text[3:], ""
            continue
        if text.startswith("> "):
            answer = text[2:]
            continue
        try:
            if match := _LIST.fullmatch(text):
                values = parse(match[2], lists)
                lists[match[1]] = Choice(values.options, match[1][0] == "@")
                continue
            root = parse(text.removeprefix("! "), lists)
        except ValueError as error:
            raise ValueError(f"{path.name}:{number}: {error}") from None
        template = Template(root, root.medium, text.startswith("! "), answer)
        sections.setdefault(name, []).append(template)
    return {key: tuple(templates) for key, templates in sections.items()}
