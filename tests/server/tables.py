"""A table of entries that one test goes through, and fails with the name of each entry that is wrong."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., Any]


def each_of(names: str | Sequence[str], entries: Iterable[Any], ids: Any = ()) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, for entries that cost next to nothing: one test, which calls the body for each.

    All entries are tried, whatever was wrong before. Each has a directory and patches of its own, and hears only what
    was said and logged in its turn.
    """
    told = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [tuple(entry) if len(told) > 1 else (entry,) for entry in entries]

    def called(number: int) -> str:
        values = table[number]
        if callable(ids):
            return "-".join(str(ids(value)) for value in values)
        return ids[number] if ids else "-".join(repr(value)[:60] for value in values)

    def decorate(test: Test) -> Test:
        @wraps(test)
        def every(**fixtures: Any) -> None:
            wrong: dict[str, BaseException] = {}
            for number, values in enumerate(table):
                with ExitStack() as stack:
                    own = dict(_own(fixtures, number, stack))
                    try:
                        turn: Any = test(**own, **dict(zip(told, values, strict=True)))
                        if inspect.iscoroutine(turn):
                            asyncio.run(turn)
                    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - told below, with all others
                        wrong[f"{number}: {called(number)}"] = error
            why = "\n\n".join(f"{name}\n    {type(error).__name__}: {error}" for name, error in wrong.items())
            if wrong:
                raise AssertionError(f"{len(wrong)} of {len(table)} are wrong:\n{why}") from next(iter(wrong.values()))

        wanted = inspect.signature(test).parameters
        assert table and set(told) <= wanted.keys(), f"no entries, or {told} are not what the test takes"
        kept = [one for name, one in wanted.items() if name not in told]
        every.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
        return every

    return decorate


def _own(fixtures: dict[str, Any], number: int, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    """What a test is handed, without what earlier entries left in it."""
    for name, value in fixtures.items():
        if name == "tmp_path":
            value = value / f"entry{number}"
            value.mkdir()
        elif name == "monkeypatch":
            value = stack.enter_context(pytest.MonkeyPatch.context())
        elif isinstance(value, pytest.LogCaptureFixture):
            value.clear()
        elif isinstance(value, pytest.CaptureFixture):
            value.readouterr()
        yield name, value
