"""The version, as `serve --version` prints it."""

import pytest

from configs.settings import load_config
from configs.version import version


def test_the_version_is_printed_by_serve_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        load_config(["--version"], {})
    assert stopped.value.code == 0 and capsys.readouterr().out == f"pixelferry {version()}\n"
