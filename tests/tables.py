"""Tables that one test walks, naming each wrong entry: `each_of` decorates a test, `entries` surrounds a loop."""

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import pytest

Test = Callable[..., Any]
Entry = Callable[[object], AbstractContextManager[None]]


@runtime_checkable
class Renewed(Protocol):
    """What a fixture gives that remembers calls: it is reset before each entry."""

    def between_entries(self) -> None: ...


def each_of(
    names: str | Sequence[str], entries: Iterable[Any], ids: Any = (), *, copied: Sequence[str] = ()
) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, for entries that cost next to nothing: one test, which calls the body for each.

    All entries are tried, whatever was wrong before. Each has a `tmp_path`, patches, and a copy of the directories of
    the fixtures named in `copied` of its own, and hears only what was said and logged in its turn; other fixtures are
    one for all entries.
    """
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [tuple(entry) if len(given) > 1 else (entry,) for entry in entries]
    labels = [str(name) for name in ids] if not callable(ids) else ["-".join(map(str, map(ids, row))) for row in table]

    def decorate(test: Test) -> Test:
        @wraps(test)
        def every(*args: Any, **fixtures: Any) -> None:
            fixtures |= zip(kept, args, strict=False)  # an outer table hands its entry on by name, pytest all of them
            wrong: dict[str, BaseException] = {}
            for number, values in enumerate(table):
                with ExitStack() as stack:
                    own = dict(_own(fixtures, f"{test.__name__}{number}", copied, stack))
                    try:
                        turn: Any = test(**own, **dict(zip(given, values, strict=True)))
                        if inspect.iscoroutine(turn):
                            asyncio.run(turn)
                    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - named below, with all others
                        label = labels[number] if labels else "-".join(_label(value) for value in values)
                        wrong[f"{number}: {label}"] = error
            why = "\n\n".join(f"{name}\n    {type(error).__name__}: {error}" for name, error in wrong.items())
            if wrong:
                raise AssertionError(f"{len(wrong)} of {len(table)} are wrong:\n{why}") from next(iter(wrong.values()))

        wanted = inspect.signature(test).parameters
        assert table and set(given) <= wanted.keys(), f"no entries, or {given} are not what the test takes"
        kept = {name: one for name, one in wanted.items() if name not in given}
        every.__signature__ = inspect.Signature([*kept.values()])  # type: ignore[attr-defined]
        return every

    return decorate


def _own(fixtures: dict[str, Any], folder: str, copied: Sequence[str], stack: ExitStack) -> Iterator[tuple[str, Any]]:
    """What a test is handed, without what earlier entries left in it."""
    for name, value in fixtures.items():
        if name == "tmp_path":
            value = value / folder
            value.mkdir()
        elif name == "monkeypatch":
            value = stack.enter_context(pytest.MonkeyPatch.context())
        elif name in copied:
            assert isinstance(value, Path)
            value = copytree(value, Path(stack.enter_context(TemporaryDirectory())) / value.name)
        elif isinstance(value, pytest.LogCaptureFixture):
            value.clear()
        elif isinstance(value, pytest.CaptureFixture):
            value.readouterr()
        elif isinstance(value, Renewed):
            value.between_entries()
        yield name, value


def _label(value: Any) -> str:
    return str(getattr(value, "__name__", repr(value)))[:60]


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
