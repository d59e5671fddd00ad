"""A file is left out where none of its tests can have a mark that is asked for, and nowhere else."""

from pathlib import Path
from typing import Any

import pytest

from tests.marked import is_left_out, unseen
from tests.tables import each_of

TEXT = """import pytest
pytestmark = pytest.mark.process
@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.families)])
def test_x(x): ...
@pytest.mark.faults
def test_y(): "of ranks"
"""


@each_of(
    ("expression", "expected"),
    [
        ("faults", False), ("ranks or families", False), ("process", False), ("ranks", True), ("ranks or served", True),
        ("", False), ("not ranks", False), ("ranks or not served", False), ("long and not ray", False),
        ("(ranks)", False), ("fault", True),
    ],
)  # fmt: skip
def test_a_file_is_left_out_where_none_of_its_tests_is_asked_for(
    tmp_path: Path, expression: str, expected: bool
) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TEXT)
    assert is_left_out(file, expression) is expected


def test_what_holds_no_tests_is_never_left_out(tmp_path: Path) -> None:
    for name in ("conftest.py", "__init__.py", "helper.py"):
        (tmp_path / name).write_text(TEXT)
        assert not is_left_out(tmp_path / name, "ranks")
    assert not is_left_out(tmp_path, "ranks"), "a folder"


class Marked:
    """As much of a test as is looked at: it came by its marks in a way that its file does not show."""

    def __init__(self, path: Path, *names: str) -> None:
        self.path, self.nodeid, self._names = path, f"{path.name}::test_x", names

    def iter_markers(self) -> list[pytest.Mark]:
        return [getattr(pytest.mark, name).mark for name in self._names]


def test_a_mark_that_a_file_does_not_show_is_complained_of(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TEXT)
    items: list[Any] = [Marked(file, "faults", "process", "parametrize"), Marked(file, "ranks", "parametrize")]
    assert unseen(items, ["faults", "process", "ranks"]) == ["test_some.py::test_x: ranks"]
