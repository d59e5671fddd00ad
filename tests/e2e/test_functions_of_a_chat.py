"""One chat runs a bounded number of functions in as few files. To raise a bound takes a line in docs/log.md."""

from pathlib import Path

import pytest

from benchmarks.functions_of_a_chat import traced

pytestmark = pytest.mark.process

REPO = Path(__file__).resolve().parents[2]
Functions = dict[str, set[tuple[str, int, str]]]

# What was counted, with 5 % of room (docs/log.md, 2026-11-24 and 2026-11-26).
BOUNDS = {"server": (238, 46), "worker": (141, 27), "engine": (368, 42)}


@pytest.fixture(scope="module")
def functions() -> Functions:
    return traced(REPO)


@pytest.mark.parametrize("role", BOUNDS)
def test_a_chat_runs_no_more_functions_than_it_did(role: str, functions: Functions) -> None:
    files = {path for path, _, _ in functions[role]}
    n_functions, n_files = BOUNDS[role]
    assert n_functions / 2 < len(functions[role]) <= n_functions, f"{len(functions[role])} functions"
    assert len(files) <= n_files, sorted(files)
