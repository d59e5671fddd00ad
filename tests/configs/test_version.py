"""The version, as `serve --version` prints it."""

from pathlib import Path

import pytest

from configs.settings import load_config
from configs.version import UNKNOWN, build, commit, version
from tests.tables import each_of


def test_the_version_is_printed_by_serve_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        load_config(["--version"], {})
    assert stopped.value.code == 0 and capsys.readouterr().out == f"pixelferry {version()} (a checkout)\n"


@each_of(
    ("stamp", "said"),
    [
        ("4203bbb1d0\n", "4203bbb1d0"), ("4203bbb1d0-dirty\n", "4203bbb1d0-dirty"), ("unknown\n", UNKNOWN),
        ("", UNKNOWN), ("main of alice", UNKNOWN), ("4203bbb\nsecret", UNKNOWN), (None, UNKNOWN),
    ],
)  # fmt: skip
def test_the_commit_is_what_the_build_wrote(stamp: str | None, said: str, tmp_path: Path) -> None:
    """And nothing else that somebody put there."""
    file = tmp_path / "commit.txt"
    if stamp is not None:
        file.write_text(stamp)
    assert commit(file) == said


@each_of(
    ("stamp", "shown"),
    [
        ("0123456789abcdef0123", "(commit 0123456789ab)"),
        ("0123456789abcdef0123-dirty", "(commit 0123456789ab-dirty)"),
        (UNKNOWN, "(a checkout)"),
    ],
)
def test_people_read_the_version_with_its_commit(stamp: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("configs.version.commit", lambda: stamp)
    assert build() == f"{version()} {shown}"
