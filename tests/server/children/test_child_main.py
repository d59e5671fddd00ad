"""A child whose server is gone ends, whatever happens, and says what went wrong."""

import os
from pathlib import Path

import pytest

from server.children import child_main as child


class Ended(BaseException):
    """What os._exit does here."""


def test_an_error_of_the_last_sweep_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise OSError("the disk is gone")

    def leave(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(child, "sweep_if_last", broken)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Ended, match="0"):
        child.end(tmp_path, -1, "0" * 16, os.getpid())
    assert "the disk is gone" in caplog.text
