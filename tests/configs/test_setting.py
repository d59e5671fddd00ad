"""How the value of one setting is read: origins, host names and switches."""

from pathlib import Path

import pytest

from configs.setting import SettingsError
from configs.settings import load_config
from tests.rights import forbidden
from tests.tables import each_of


@each_of("text", ["a.example", "https://a.example/", "https://a.example/x", "https://u@a.example", "a,b"])
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="^--allowed-origins: .*is no origin, such as https://app.example"):
        load_config(["--allowed-origins", text], {})
    assert load_config(["--allowed-origins", "*"], {}).http.allowed_origins == ("*",)


def test_origins_are_a_list_in_a_profile(tmp_path: Path) -> None:
    (tmp_path / "web.toml").write_text('allowed_origins = ["https://a.example", "https://b.example:8443"]\n')
    config = load_config(["--profile", str(tmp_path / "web.toml")], {})
    assert config.http.allowed_origins == ("https://a.example", "https://b.example:8443")


@each_of("text", ["http://a.example", "a.example:80", "a b", "*", "-", "::1", "a/b"])
def test_what_is_no_host_name_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="^--allowed-host: .*is no host name, such as llm.example.com"):
        load_config([f"--allowed-host={text}"], {})


def test_host_names_are_repeated_or_stand_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "web.toml").write_text('allowed_host = ["A.example.", "[fd00::1]"]\n')
    found = ("a.example", "[fd00::1]")
    for config in (
        load_config(["--profile", str(tmp_path / "web.toml")], {}),
        load_config(["--allowed-host", "a.example", "--allowed-host", "[fd00::1]"], {}),
        load_config([], {"PIXELFERRY_ALLOWED_HOST": "a.example [FD00::1]"}),
    ):
        assert config.http.allowed_hosts == found


def test_a_switch_is_written_in_three_ways(tmp_path: Path) -> None:
    profile = tmp_path / "own.toml"
    profile.write_text("access_log = false\n")
    off: list[tuple[list[str], dict[str, str]]] = [
        (["--no-access-log"], {}), ([], {"PIXELFERRY_ACCESS_LOG": "false"}), (["--profile", str(profile)], {}),
    ]  # fmt: skip
    assert [load_config(flags, env).log.access for flags, env in off] == [False] * 3
    assert load_config(["--profile", str(profile), "--access-log"], {}).log.access
    with pytest.raises(SettingsError, match="PIXELFERRY_ACCESS_LOG: expected true or false, got '0'"):
        load_config([], {"PIXELFERRY_ACCESS_LOG": "0"})
    profile.write_text("access_log = 0\n")
    with pytest.raises(SettingsError, match="access_log: expected true or false, got 0"):
        load_config(["--profile", str(profile)], {})


@each_of("flag", ["--model", "--allow-media-root", "--chat-template"])
def test_a_path_that_nobody_may_look_at_is_named(flag: str, tmp_path: Path) -> None:
    path = tmp_path / "closed" / "inner"
    path.mkdir(parents=True)
    with (
        forbidden(path.parent),
        pytest.raises(SettingsError, match=f"^{flag}: {path} cannot be read: Permission denied$"),
    ):
        load_config([flag, str(path)], {})
    with pytest.raises(SettingsError, match=f"^{flag}: /.* cannot be read: File name too long$"):
        load_config([flag, "/" + "x" * 300], {})
