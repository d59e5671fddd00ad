"""Which files of tests a run imports: of those that have none of the marks it asks for, no test would run.

`make proofs` and `make pages` ask for marks that one file in fifteen has; to import the others takes half a minute of
the processor in each of pytest's processes.
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ASKED_FOR = re.compile(r"\w+(?: or \w+)*")  # an expression of `-m` that a test without any mark cannot meet
CODE_OF_TESTS = "test_*.py"


def is_left_out(path: Path, expression: str) -> bool:
    """Whether no test of the file can have what `-m` asks for; False where it asks for more than one of some marks."""
    if not path.match(CODE_OF_TESTS) or not ASKED_FOR.fullmatch(expression):
        return False
    return _marks_in(path).isdisjoint(expression.split(" or "))


def unseen(items: Iterable[pytest.Item], names: Iterable[str]) -> list[str]:
    """Tests with one of these marks, by `mark.NAME`, which the text of their file does not have: `-m NAME` misses them.

    names: of the marks that some run asks for.
    """
    asked = frozenset(names)
    return [
        f"{item.nodeid}: {mark.name}"
        for item in items
        for mark in item.iter_markers()
        if mark.name in asked and mark.name not in _marks_in(item.path)
    ]


@cache
def _marks_in(path: Path) -> frozenset[str]:
    """The marks that its text names."""
    return frozenset(re.findall(r"\bmark\.(\w+)", path.read_text(encoding="utf-8")))
