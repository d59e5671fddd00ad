"""One setting, three spellings, rising precedence; whatever is wrong is named."""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from configs import settings
from configs.serve import ModelConfig, ServeConfig
from configs.setting import Setting, SettingsError
from configs.settings import CHECKS_VARIABLE as CHECKS
from configs.settings import EMBEDDED_MODEL, EMBEDDED_NAME, SETTINGS, child_env, load_config
from tests.tables import each_of


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text("max_pixels = 10000\nmax_items = 3\nworkers = 3\nkv_cache_mib = 7\n")
    return path


def test_without_a_word_the_embedded_checkpoint_is_served() -> None:
    config = load_config([], {})
    assert config == ServeConfig(model=ModelConfig(path=EMBEDDED_MODEL, served_name=EMBEDDED_NAME))
    assert (EMBEDDED_MODEL / "config.json").is_file()
    assert "demo" in EMBEDDED_NAME


def test_precedence_rises_from_profile_to_command_line(profile: Path) -> None:
    env = {"PIXELFERRY_MAX_ITEMS": "4", "PIXELFERRY_WORKERS": "4", "HOME": "/"}
    config = load_config(["--profile", str(profile), "--workers", "5"], env)
    assert config.media.max_pixels == 10000
    assert config.media.max_items == 4
    assert config.workers == 5
    assert config.engine.kv_cache_bytes == 7 << 20
    assert config.http == ServeConfig(model=config.model).http


def test_the_environment_may_name_the_profile(profile: Path) -> None:
    assert load_config([], {"PIXELFERRY_PROFILE": str(profile)}).workers == 3
    assert load_config(["--profile", "cpu"], {"PIXELFERRY_PROFILE": str(profile)}).workers == 2


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIXELFERRY_PORT", "1234")
    assert load_config([]).http.port == 1234
    assert child_env({"OMP_NUM_THREADS": "9"}) == {**os.environ, "OMP_NUM_THREADS": "9"}


def test_model_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Some-VL-2B").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_config(["--model", "Some-VL-2B/"], {}).model == ModelConfig(
        path=tmp_path / "Some-VL-2B", served_name="Some-VL-2B"
    )
    assert load_config(["--model", "Some-VL-2B", "--served-model-name", "some"], {}).model.served_name == "some"


def test_media_roots_are_repeatable_and_separated(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    assert load_config(["--allow-media-root", str(one), "--allow-media-root", str(two)], {}).media.roots == (one, two)
    assert load_config([], {"PIXELFERRY_ALLOW_MEDIA_ROOT": f"{one}:{two}"}).media.roots == (one, two)
    profile = tmp_path / "roots.toml"
    profile.write_text(f'allow_media_root = ["{one}"]\n')
    assert load_config(["--profile", str(profile)], {}).media.roots == (one,)


@each_of(
    ("argv", "message"),
    [
        (["--port", "x"], r"^--port: expected a whole number, got 'x'"),
        (["--port", "70000"], r"^--port: 70000 is outside 0 to 65,535"),
        (["--port"], "--port"),
        (["--tensor-parallel", "0"], r"^--tensor-parallel: 0 is outside 1 to 64$"),
        (["--tensor-parallel", "-1"], r"^--tensor-parallel: -1 is outside 1 to 64$"),
        (["--tensor-parallel", "x"], r"^--tensor-parallel: expected a whole number, got 'x'$"),
        (["--encoder-parallel", "tensor"], r"^--encoder-parallel: 'tensor' is none of data, replicated$"),
        (["--shm-mib", "0"], r"^--shm-mib: 0 is outside 1 to 1,048,576 MiB"),
        (["--drain-seconds", "nan"], r"^--drain-seconds: nan is outside"),
        (["--device", "tpu"], r"^--device: 'tpu' is none of auto, npu, cpu, cuda"),
        (["--model", "/no/such"], r"^--model: /no/such is not a directory"),
        (["--allow-media-root", "/no/such"], r"^--allow-media-root: /no/such is not a directory"),
        (["--served-model-name", ""], r"^--served-model-name: expected a text"),
        (["--max-pixel", "9"], "unrecognized arguments: --max-pixel"),  # no abbreviations, no typos
        (["extra"], r"^--model: /.*/extra is not a directory, and a model on a hub is named ORG/NAME"),
        (["org/name", "extra"], "unrecognized arguments: extra"),
        (["org/name", "--model", "org/other"], "two are named: org/name and --model org/other"),
        (["--max-pixel", "9"], r"--max-pixel; did you mean '--max-pixels'\?"),
        (["--host", "h", "--prot=1"], r"--prot=1; did you mean '--port'\?"),
        (["--max-num-seqs", "9"], r"--max-num-seqs; for vLLM's --max-num-seqs give --max-seqs$"),
        (
            ["org/name", "-tp", "2", "--enforce-eager"],
            r"-tp 2 --enforce-eager; .*-tp give --tensor-parallel; .*give --no-graphs$",
        ),
        (["--trust-remote-code"], r"vLLM's --trust-remote-code is not needed: no code of a checkpoint runs$"),
        (
            ["--shm-size", "1g"],
            r"--shm-size is a flag of docker run: .* image's name, and --shm-mib here says how much",
        ),
        (["--gpus=all"], r"--gpus is a flag of docker run: it stands in front of the image's name$"),
        (["--root-path", "llm"], r"^--root-path: expected a path as /llm, .*, got 'llm'"),
        (["--root-path", "/llm/"], r"^--root-path: expected a path as /llm, without a slash at its end"),
        (["--api-key-file", "/no/such"], r"^--api-key-file: /no/such is not a file that can be found"),
        (["--ssl-certfile", "/"], r"^--ssl-certfile: / is not a file that can be found"),
        (["--profile", "nope"], r"--profile nope \(.*nope.toml\): cannot be read: .*known names: .*cpu"),
    ],
)
def test_a_wrong_flag_is_named(argv: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_config(argv, {})


@each_of(
    ("text", "message"),
    [
        ("max_pixel = 1\n", r"the unknown key 'max_pixel'; did you mean 'max_pixels'\?"),
        ("[engine]\nmax_seqs = 1\n", r"\[engine\]: profiles have no tables: each setting stands by itself$"),
        ("max_seqs = 0\n", "max_seqs: 0 is outside 1 to 4,096"),
        ("max_seqs = 1.5\n", "max_seqs: expected a whole number, got 1.5"),
        ("max_seqs = true\n", "max_seqs: expected a whole number, got True"),
        ('port = "8000"\n', "port: '8000' is a text in .*: write it without quotes"),
        ('access_log = "false"\n', "access_log: 'false' is a text in .*: write it without quotes"),
        ("host = 7\n", "host: expected a text"),
        ("allow_media_root = [1]\n", "allow_media_root: expected a text"),
        ("max_seqs = \n", "not valid TOML"),
        ("port = 1\nhost = [\n", r"not valid TOML: Invalid value \(at the end of line 2, the last one\)$"),
    ],
)
def test_a_wrong_profile_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(SettingsError, match=f"bad.toml.*{message}"):
        load_config(["--profile", str(tmp_path / "bad.toml")], {})


def test_a_profiles_path_stands_once_in_its_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    for text in ("max_pixel = 1\n", "[engine]\n", "port = [\n"):
        path.write_text(text)
        with pytest.raises(SettingsError) as caught:
            load_config(["--profile", str(path)], {})
        assert str(caught.value).count(str(path)) == 1


def test_the_variable_that_asks_an_npus_operators() -> None:
    asked = [load_config([], env).engine.check_launches for env in ({}, {CHECKS: "0"}, {CHECKS: "1"})]
    assert asked == [False, False, True]
    with pytest.raises(SettingsError, match=f"^{CHECKS}: expected 0 or 1, got 'yes'"):
        load_config([], {CHECKS: "yes"})


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^PIXELFERRY_MAX_SEQS: expected a whole number, got 'many'"):
        load_config([], {"PIXELFERRY_MAX_SEQS": "many"})
    with pytest.raises(
        SettingsError, match=r"^PIXELFERRY_MAX_SEQ: no such setting; did you mean 'PIXELFERRY_MAX_SEQS'\?"
    ):
        load_config([], {"PIXELFERRY_MAX_SEQ": "3"})


@each_of(
    ("argv", "env"),
    [
        (["--api-key", "geheim heit"], {}),
        (["--api-key", "geheim\u00e9"], {}),
        (["--api-key", "x", "geheim"], {}),
        (["--api-key", "x", "geh/geheim"], {}),
        (["--model", "org/name", "--api-key", "x", "geheim"], {}),
        (["--api-kye", "geheim"], {}),
        (["--api-kye=geheim"], {}),
        (["--api-key", "geheim", "--prot", "1"], {}),
        ([], {"PIXELFERRY_API_KEY": "geheim\x00"}),
        ([], {"PIXELFERRY_API_KEYS": "geheim"}),
    ],
)
def test_a_wrong_setting_shows_no_key(argv: list[str], env: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load_config(argv, env)
    assert "geheim" not in str(caught.value)


@each_of("text", ["", "  ", "\n"])
def test_a_variable_without_a_key_does_not_open_the_server(text: str) -> None:
    with pytest.raises(SettingsError, match="^PIXELFERRY_API_KEY: expected a key"):
        load_config([], {"PIXELFERRY_API_KEY": text})


def test_keys_are_kept_as_digests_and_from_no_child_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (hashlib.sha256(key).digest() for key in (b"one", b"two"))
    config = load_config(["--api-key", "one", "--api-key", "two"], {"PIXELFERRY_API_KEY": "else"})
    assert config.http.api_keys == (one, two) and "'one'" not in repr(config)
    assert load_config([], {"PIXELFERRY_API_KEY": " one\ntwo\n"}).http.api_keys == (one, two)
    (tmp_path / "mine.toml").write_text('api_key = ["one", "two"]\n')
    assert load_config(["--profile", str(tmp_path / "mine.toml")], {}).http.api_keys == (one, two)
    monkeypatch.setenv("PIXELFERRY_API_KEY", "one")
    assert "PIXELFERRY_API_KEY" not in child_env({}) and "PIXELFERRY_SHM_ROOT" in child_env({})


def test_what_kubernetes_writes_for_a_service_is_passed_over() -> None:
    env = {
        "PIXELFERRY_PORT": "tcp://10.0.0.7:8000",
        "PIXELFERRY_PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "PIXELFERRY_PORT_8000_TCP_ADDR": "10.0.0.7",
        "PIXELFERRY_SERVICE_HOST": "10.0.0.7",
        "PIXELFERRY_SERVICE_PORT_HTTP": "8000",
        "PIXELFERRY_CHAT_SERVICE_HOST": "10.0.0.8",
    }
    assert load_config([], env) == load_config([], {})


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        load_config(["--help"], {})
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert [setting.flag for setting in SETTINGS if setting.flag not in shown] == []


def fields_of(config: msgspec.Struct, section: str = "") -> set[tuple[str, str]]:
    """Every (section, field) of a configuration."""
    found = set()
    for name in config.__struct_fields__:
        value = getattr(config, name)
        found |= fields_of(value, name) if isinstance(value, msgspec.Struct) else {(section, name)}
    return found


def test_every_field_has_exactly_one_setting() -> None:
    fields = [(setting.section, setting.field) for setting in SETTINGS]
    assert len(set(fields)) == len(fields)
    assert set(fields) == fields_of(load_config([], {})) - {
        ("media", "own_pixels"), ("model", "wanted"), ("engine", "fits_threads"),
        ("engine", "check_launches"),
        ("traces", "asked_by"), ("traces", "hindrance"),
    }  # fmt: skip


def sample(setting: Setting, directory: Path) -> tuple[str, Any]:
    """A text that is not the default, and the field's value for it."""
    if setting.choices:
        return setting.choices[-1], setting.choices[-1]
    if setting.kind in ("int", "float"):
        number = int(setting.low or 0) + 77 if setting.high is None or setting.high > 1000 else int(setting.high)
        return str(number), number * setting.scale
    if setting.kind in ("text", "prefix"):
        return "/else", "/else"
    written: dict[str, tuple[str, Any]] = {
        "secrets": ("sk-1", (hashlib.sha256(b"sk-1").digest(),)),
        "origins": ("https://a.example, http://localhost:3000", ("https://a.example", "http://localhost:3000")),
        "hosts": ("LLM.example.com", ("llm.example.com",)),
        "domains": (".Media.example.com", (".media.example.com",)),
        "networks": ("10.1.0.0/16", ("10.1.0.0/16",)),
        "proxy": ("http://proxy.example:3128", "http://proxy.example:3128"),
    }
    if setting.kind in written:
        return written[setting.kind]
    if setting.kind == "file":
        directory = directory / "file"
        directory.touch()
    if setting.kind == "switch":
        return str(not setting.default).lower(), not setting.default
    return str(directory), (directory,) if setting.kind == "paths" else directory


NEED_A_DOMAIN = ("allowed_media_network", "media_ca", "media_proxy")


def no_form(setting: Setting) -> str:
    return "--no-" + setting.flag.removeprefix("--")


@each_of("setting", SETTINGS, ids=lambda setting: setting.name)
def test_flag_and_variable_set_the_field(setting: Setting, tmp_path: Path) -> None:
    text, expected = sample(setting, tmp_path)
    flags = (
        [no_form(setting) if text == "false" else setting.flag] if setting.kind == "switch" else [setting.flag, text]
    )
    beside = ["--allowed-media-domain", "media.example.com"] * (setting.name in NEED_A_DOMAIN)
    for config in (
        load_config([*beside, *flags], {}),
        load_config(beside, {f"PIXELFERRY_{setting.name.upper()}": text}),
    ):
        owner = getattr(config, setting.section) if setting.section else config
        assert getattr(owner, setting.field) == expected
        assert config != load_config([], {})


def test_an_extra_is_installed_into_a_checkout_or_beside_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel has no folder that pip could take again, and its name on an index may be anybody's."""
    pip = f"{sys.executable} -m pip install"
    checkout = f"{pip} -c {settings.REPO}/constraints/cpu.txt -e '{settings.REPO}[hub]'"
    assert settings.install_command("hub") == checkout
    monkeypatch.setattr(settings, "REPO", tmp_path)
    assert settings.install_command("hub") == f"{pip} 'huggingface-hub>=2.0' 'httpx2>=2.0' 'tqdm>=4.66'"
    assert "pixelferry" not in settings.install_command("otel").partition("install")[2]
