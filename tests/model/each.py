"""Many entries in one test: each is asked, whatever another one gave, and those that fail are told by name."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import pytest

Test = Callable[..., None]


@runtime_checkable
class Renewed(Protocol):
    """What a fixture gives that remembers what it was asked."""

    def between_entries(self) -> None: ...


def each(
    names: str | Sequence[str], entries: Iterable[Any], ids: Iterable[object] | Callable[[Any], object] | None = None
) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize`, in one test: fixtures are made once for all entries.

    An entry has its own `monkeypatch`, a `tmp_path` of its own below the test's, and a copy of any other directory. A
    fixture with `between_entries` is told of each.
    """
    words = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    given = [entry if len(words) > 1 else (entry,) for entry in entries]
    if ids is None or callable(ids):
        labels = ["-".join(_label(part) for part in entry) for entry in given]
    else:
        labels = [str(name) for name in ids]

    def loop(test: Test) -> Test:
        asked = inspect.signature(test)

        @wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            fixtures |= zip(left, args, strict=False)
            wrong: dict[str, BaseException] = {}
            for i, (label, entry) in enumerate(zip(labels, given, strict=True)):
                with ExitStack() as stack:
                    own = _own(fixtures, f"{test.__name__}-{i}", stack)
                    try:
                        test(**own, **dict(zip(words, entry, strict=True)))
                    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the others are asked all the same
                        wrong[label] = error
            if wrong:
                told = "\n".join(f"{label}: {type(error).__name__}: {error}" for label, error in wrong.items())
                raise AssertionError(f"{len(wrong)} of {len(given)} fail:\n{told}") from next(iter(wrong.values()))

        left = [name for name in asked.parameters if name not in words]
        run.__signature__ = asked.replace(parameters=[asked.parameters[name] for name in left])  # type: ignore[attr-defined]
        return run

    return loop


def _own(fixtures: dict[str, Any], folder: str, stack: ExitStack) -> dict[str, Any]:
    found = dict(fixtures)
    if "monkeypatch" in found:
        found["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
    if "tmp_path" in found:
        found["tmp_path"] = found["tmp_path"] / folder
        found["tmp_path"].mkdir()
    for name, value in found.items():
        if isinstance(value, Path) and value.is_dir() and name != "tmp_path":
            found[name] = copytree(value, Path(stack.enter_context(TemporaryDirectory())) / value.name)
        elif isinstance(value, pytest.LogCaptureFixture):
            value.clear()
        elif isinstance(value, Renewed):
            value.between_entries()
    return found


def _label(part: Any) -> str:
    return str(getattr(part, "__name__", part))[:60]
