"""How the value of one setting is read: origins."""

from pathlib import Path

import pytest

from configs.setting import SettingsError
from configs.settings import load_config


@pytest.mark.parametrize(
    "text", ["a.example", "https://a.example/", "https://a.example/x", "https://u@a.example", "a,b"]
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="^--allowed-origins: .*is no origin, such as https://app.example"):
        load_config(["--allowed-origins", text], {})
    assert load_config(["--allowed-origins", "*"], {}).http.allowed_origins == ("*",)


def test_origins_are_a_list_in_a_profile(tmp_path: Path) -> None:
    (tmp_path / "web.toml").write_text('allowed_origins = ["https://a.example", "https://b.example:8443"]\n')
    config = load_config(["--profile", str(tmp_path / "web.toml")], {})
    assert config.http.allowed_origins == ("https://a.example", "https://b.example:8443")
