"""The same checks for each entry of a table: all entries are looked at, and a failure names those that are wrong."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

Entry = Callable[[object], AbstractContextManager[None]]


@contextmanager
def entries() -> Iterator[Entry]:
    """`with entries() as entry:` around a loop, `with entry(name):` around the checks of one entry."""
    wrong: list[str] = []

    @contextmanager
    def entry(name: object) -> Iterator[None]:
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - whatever it is, the others are looked at
            *_, last = [at for at in traceback.extract_tb(error.__traceback__) if "/tests/" in at.filename]
            wrong.append(f"{name}, line {last.lineno}: {type(error).__name__}: {str(error)[:800]}")

    yield entry
    assert not wrong, f"{len(wrong)} entries are wrong:\n" + "\n".join(wrong)
