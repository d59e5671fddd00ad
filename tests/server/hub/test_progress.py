"""A download's lines in a log."""

import logging

import pytest

from server.hub import progress
from tests.tables import each_of


def lines(caplog: pytest.LogCaptureFixture, total: int | None) -> list[str]:
    with caplog.at_level(logging.INFO, "pixelferry"), progress.LoggedBar(desc="(…)abc/x.bin", total=total) as bar:
        for _ in range(3):
            bar.update(1 << 20)
    return caplog.messages


@each_of(("total", "of"), [(3 << 20, " of 3 MiB"), (None, "")])
def test_what_takes_long_is_logged_with_its_size(
    total: int | None,
    of: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    found = lines(caplog, total)
    assert found[0] == f"downloading x.bin: 1 MiB{of}" and found[-1] == f"downloading x.bin: 3 MiB{of}"
    shown = capfd.readouterr()
    assert shown.out == "" and not {"\r", "%"} & set(shown.err), "no bar"


def test_what_is_quick_is_not(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, 3 << 20) == []
