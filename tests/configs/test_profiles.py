"""The profiles that come along: one names every setting, the others only what differs."""

import sys

from configs.settings import PROFILES, SETTINGS, load_config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_the_cpu_profile_is_complete_and_says_the_defaults() -> None:
    text = (PROFILES / "cpu.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    for setting in SETTINGS:
        if setting.default in (None, ()):
            assert f"\n# {setting.name} = " in text, setting.name
        else:
            assert table[setting.name] == setting.default, setting.name
    assert load_config(["--profile", "cpu"], {}) == load_config([], {})


def test_the_atlas_profile_says_only_what_differs() -> None:
    table = tomllib.loads((PROFILES / "atlas.toml").read_text(encoding="utf-8"))
    defaults = {setting.name: setting.default for setting in SETTINGS}
    assert table and all(defaults[name] != value for name, value in table.items())
    config = load_config(["--profile", "atlas"], {})
    assert config.media.own_pixels == "always", "a device sees pictures at the checkpoint's own size"
    assert config.engine.kv_cache_share is None and config.engine.kv_cache_bytes is None, "measured on the device"
    assert load_config(["--profile", "atlas", "--max-seqs", "8"], {}).engine.max_seqs == 8
