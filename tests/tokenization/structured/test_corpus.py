"""Schemas that others published: those that compile give answers of a random model that are valid, each of them."""

import sys

import pytest

from benchmarks.structured_corpus import look
from tests.e2e.running import REPO

SCHEMAS = REPO / "build" / "schemas"  # by `make long`
LEAST = 300  # schemas of which three of five answers end


@pytest.mark.long
def test_every_whole_answer_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(SCHEMAS)])
    by_source = look(SCHEMAS)
    for source, found in by_source.items():
        print(f"{source}: {found.compiled} of {found.schemas} compiled, {found.counted} count; {found.refused}")
        assert found.wrong == [] and found.failed == [], source
    assert sum(found.counted for found in by_source.values()) >= LEAST
    assert set(by_source) == {"jsonschema suite", "check-jsonschema", "kubernetes"}
