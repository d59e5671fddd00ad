"""What the laws ask of a module's syntax; it is parsed once, whichever laws ask."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

_ALIAS = re.compile(r"_?[A-Z](?=.*[a-z])[A-Za-z0-9]+")


class Function(NamedTuple):
    """The whole `def`, docstring included."""

    name: str
    line: int
    lines: int


@dataclass(frozen=True)
class Module:
    """Kept where the tree is not, which is large."""

    documented: bool
    functions: list[Function]
    types: set[str]  # classes and aliases of types at its top
    imported: set[str]  # top-level names, late imports as well


@cache
def module(text: str) -> Module:
    """Of a module with this text."""
    tree = ast.parse(text)
    types = {name for node in tree.body for name in _type_names(node)}
    found = Module(documented=bool(ast.get_docstring(tree)), functions=[], types=types, imported=set())
    for node in _statements(tree.body):
        if isinstance(node, ast.Import):
            found.imported.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.imported.add(node.module.split(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found.functions.append(Function(node.name, node.lineno, lines))
    return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a body, and all inside them."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, part, []))


def _type_names(node: ast.stmt) -> Iterator[str]:
    """The class that a statement makes; or the alias, which is written as a class is, and is no TypeVar."""
    if isinstance(node, ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        made_by = getattr(node.value.func, "id", "") if isinstance(node.value, ast.Call) else ""
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and _ALIAS.fullmatch(target.id) and made_by not in ("TypeVar", "NewType"):
                yield target.id
