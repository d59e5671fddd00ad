"""How pytest-xdist shares the files of tests out, and in which order files run: those of one server stay together."""

import ast
import random
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[1]
E2E = "tests/e2e/"
APART = f"{E2E}test_layouts.py"  # a server for each test: none is shared
# Servers of session scope (tests/e2e/conftest.py), by the group of the files that ask for any of them. A group runs in
# one process, so that each of its servers starts once.
SHARED = {"embedded": "embedded"}
SHARED |= dict.fromkeys(("server", "omni", "omni_server", "small", "saying"), "servers")


def scheduling(config: pytest.Config, log: Any) -> Any:
    """What `--dist loadfile` does, but files of one server count as one, and all begin in the order of collection.

    xdist's own order is by the number of tests, and a file of few tests may be the longest. Its groups (`--dist
    loadgroup`) do nothing under pytest 9.2, where a plugin cannot change a node id any more.
    """
    config.option.loadscopereorder = False
    found = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    found._split_scope = group_of
    return found


def group_of(nodeid: str) -> str:
    """The name of a group of servers, or a file, or one test of a file whose tests share nothing."""
    path = nodeid.partition("::")[0]
    if path == APART:
        return nodeid
    return group_of_file(path) if path.startswith(E2E) else path


@cache
def group_of_file(path: str) -> str:
    """By the servers that tests and fixtures of a file of end-to-end tests ask for; else its own path."""
    text = (REPO / path).read_text(encoding="utf-8")
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    fixtures = [node for node in functions if any("fixture" in ast.unparse(one) for one in node.decorator_list)]
    tests = [node for node in functions if node.name.startswith("test_")]
    asked = {argument.arg for node in (*fixtures, *tests) for argument in node.args.args}
    groups = {SHARED[name] for name in asked - {node.name for node in fixtures} if name in SHARED}
    if "request.getfixturevalue(" in text:  # one of them, by a name that is known later
        groups.add("servers")
    return max(groups, default=path)  # one that asks for both goes to those of `servers`


def put_long_first(items: list[pytest.Item]) -> None:
    """Move tests of running servers to the front: the longest files must not begin when all else is done."""
    items.sort(key=lambda item: not item.nodeid.startswith(E2E))


def put_in_random_order(items: list[pytest.Item], seed: int) -> None:
    """Whole files, in an order that the seed tells; the tests of each stay in theirs. Alike in every process."""
    files = sorted({item.nodeid.partition("::")[0] for item in items})
    random.Random(seed).shuffle(files)
    place = {path: number for number, path in enumerate(files)}
    items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])
