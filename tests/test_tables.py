"""A table that one test goes through: every entry is tried, and each wrong one is named."""

import os
from pathlib import Path

import pytest

from tests.tables import each_of, entries


def test_all_entries_are_tried_and_each_wrong_one_is_named() -> None:
    tried: list[int] = []

    @each_of(("number", "word"), [(1, "a"), (2, "b"), (3, "c")], ids=["first", "second", "third"])
    def body(number: int, word: str) -> None:
        tried.append(number)
        assert word == "b", f"{word} is no b"

    with pytest.raises(AssertionError, match=r"2 of 3 are wrong:\n0: first\n(?s:.*)a is no b(?s:.*)2: third"):
        body()
    assert tried == [1, 2, 3]


def test_a_body_of_asyncio_runs() -> None:
    @each_of("n", [1, 2])
    async def body(n: int) -> None:
        assert n < 2

    with pytest.raises(AssertionError, match="1 of 2 are wrong:\n1: 2"):
        body()


@each_of("name", ["a", "b"])
def test_each_entry_has_a_directory_and_patches_of_its_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print(name)
    assert capsys.readouterr().out == f"{name}\n"
    assert list(tmp_path.iterdir()) == [] and "TABLE" not in os.environ
    (tmp_path / name).touch()
    monkeypatch.setenv("TABLE", name)


def test_a_loop_names_each_wrong_entry() -> None:
    with pytest.raises(AssertionError, match=r"2 entries are wrong:\n1, line \d+: (?s:.*)\n3, line"):
        with entries() as entry:
            for n in (1, 2, 3):
                with entry(n):
                    assert n == 2
