"""Draw mutants: small changes of the product's code, each of which some test should see.

    .venv/bin/python -m tests.mutants.draw --seed 1 > build/mutants-1.json

A stratum is one of the five rooms, or deploy/ray. Strings, docstrings, annotations, types and logging are not drawn:
no test is asked to see a text. Equivalent mutants, which change nothing that a caller could see, are struck out by
hand: `--not N` takes the next one of the stratum in place of the mutant of that number.
"""

import argparse
import ast
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
STRATA = {"configs": 6, "shm": 5, "tokenization": 10, "model": 12, "server": 12, "deploy/ray": 5}  # mutants of each
FLIPPED: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*",
    ast.Div: "*", ast.Mod: "*",
}  # fmt: skip
LOGGERS = ("log", "logger", "logging", "warnings", "print")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one file. start and end: offsets in its UTF-8 bytes; what lies between becomes `text`."""

    number: int
    stratum: str
    path: str
    line: int  # of the change, for a reader
    probe_line: int  # before which a statement can be put that runs whenever the changed one does
    at_import: bool  # and not when a function is called
    start: int
    end: int
    text: str
    was: str

    def apply(self, root: Path) -> bytes:
        """Change the file below root, and answer with the bytes that it had."""
        before = (root / self.path).read_bytes()
        (root / self.path).write_bytes(before[: self.start] + self.text.encode() + before[self.end :])
        return before


class _Sites(ast.NodeVisitor):
    """Every place of a module that can be changed: (node, replacement), with the statement that holds it."""

    def __init__(self, source: str) -> None:
        self.found: list[tuple[ast.stmt, ast.expr | ast.stmt, str, bool]] = []
        self._source = source
        self._depth = 0  # of functions
        self._statements: list[ast.stmt] = []

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal | ast.Assert):
            return
        if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or self._logs(node.value)):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self._statements.append(node)
        super().visit(node)
        self._statements.pop()

    def _text(self, node: ast.AST) -> str:
        return ast.get_source_segment(self._source, node) or ""

    def _add(self, node: ast.expr | ast.stmt, text: str) -> None:
        self.found.append((self._statements[-1], node, text, not self._depth))

    def _logs(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and ast.unparse(node.func).lstrip("_").split(".")[0] in LOGGERS

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.args.defaults, *(one for one in node.args.kw_defaults if one)):
            self.visit(part)
        self._depth += 1
        for inner in node.body:
            self.visit(inner)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add(node, "pass")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text."""

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in FLIPPED:
            left, right = self._text(node.left), self._text(node.comparators[0])
            self._add(node, f"({left} {FLIPPED[type(node.ops[0])]} {right})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = [one for one in ast.walk(node) if isinstance(one, ast.JoinedStr) or _is_text(one)]
        if type(node.op) in FLIPPED and not texts:
            self._add(node, f"({self._text(node.left)} {FLIPPED[type(node.op)]} {self._text(node.right)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " or " if isinstance(node.op, ast.And) else " and "
        self._add(node, "(" + word.join(f"({self._text(value)})" for value in node.values) + ")")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, f"bool({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add(node.test, f"(not ({self._text(node.test)}))")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._add(node.test, f"not ({self._text(node.test)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._add(node, f"({node.value!r} + 1)")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add(node, "return None")
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await):
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "pass")
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not isinstance(node.targets[0], ast.Name | ast.Tuple):
            self._add(node, "pass")
        self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, "break")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _probe_lines(tree: ast.Module, lines: list[str]) -> dict[ast.stmt, int]:
    """For each statement, the line before which a statement of its own can stand: not before an `elif`, and not before
    what follows a colon on the same line."""
    found: dict[ast.stmt, int] = {}

    def walk(body: list[ast.stmt], outer: int) -> None:
        for one in body:
            decorated = getattr(one, "decorator_list", None) or [one]
            first = min(one.lineno, decorated[0].lineno)
            begins = lines[first - 1].lstrip().encode().startswith(lines[first - 1].encode()[one.col_offset :][:1])
            alone = not lines[first - 1][: one.col_offset].strip() and begins
            found[one] = first if alone and not lines[first - 1].lstrip().startswith("elif ") else outer
            for name in ("body", "orelse", "finalbody"):
                walk(getattr(one, name, []), found[one])
            for handler in [*getattr(one, "handlers", []), *getattr(one, "cases", [])]:
                walk(handler.body, found[one])

    walk(tree.body, 1)
    return found


def _sites(stratum: str, root: Path) -> Iterator[Mutant]:
    for path in sorted((root / stratum).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        tree, lines = ast.parse(source), source.splitlines(keepends=True)
        begins = [0]
        for line in lines:
            begins.append(begins[-1] + len(line.encode()))
        probe_lines, visitor = _probe_lines(tree, lines), _Sites(source)
        visitor.visit(tree)
        for statement, node, text, at_import in visitor.found:
            start = begins[node.lineno - 1] + node.col_offset
            end = begins[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            yield Mutant(
                number=0, stratum=stratum, path=path.relative_to(root).as_posix(), line=node.lineno,
                probe_line=probe_lines[statement], at_import=at_import, start=start, end=end, text=text,
                was=source.encode()[start:end].decode(),
            )  # fmt: skip


def draw(seed: int, struck: set[int], root: Path = REPO) -> list[Mutant]:
    """struck: numbers that are not taken; each is replaced by the next one of its stratum."""
    found: list[Mutant] = []
    for place, (stratum, n) in enumerate(STRATA.items()):
        sites = list(_sites(stratum, root))
        random.Random(f"{seed} {stratum}").shuffle(sites)
        first = 100_000 * seed + 10_000 * place
        taken = [(first + i, one) for i, one in enumerate(sites) if first + i not in struck][:n]
        found += [Mutant(**{**asdict(one), "number": number}) for number, one in taken]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--not", type=int, nargs="*", default=[], dest="struck", metavar="N", help="strike mutant N out"
    )
    asked = parser.parse_args()
    json.dump([asdict(one) for one in draw(asked.seed, set(asked.struck))], sys.stdout, indent=1)


if __name__ == "__main__":
    main()
