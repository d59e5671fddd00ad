"""ServeConfig from profile, environment and command line; the only reader of the environment."""

import argparse
import importlib.metadata
import os
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import replace

from configs.fetch import EVERY_HOST, FetchConfig
from configs.nearest import did_you_mean
from configs.serve import HttpConfig, ModelConfig, ServeConfig
from configs.setting import REPEATABLE, HubModel, Setting, SettingsError, declared
from configs.traces import TraceConfig, traces_asked
from configs.version import build
from configs.vllm_flags import BY_NAME

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SETTINGS = tuple(declared(ServeConfig))
# Of docker run, and no flags of `serve`: behind the image's name they come here.
DOCKERS = frozenset(
    {
        "--shm-size", "--gpus", "--ipc", "--runtime", "--network", "--publish", "--volume", "--mount", "--env",
        "--env-file", "--ulimit", "--tmpfs", "--memory", "--cpus", "--rm", "--detach", "--user", "--read-only",
    }
)  # fmt: skip
SECTIONS = {  # of ServeConfig, as people read of them
    "model": "What is served",
    "http": "HTTP",
    "media": "Media",
    "fetch": "Media by URL",
    "worker": "Memory of a worker",
    "shm": "Shared memory",
    "engine": "Engine",
    "log": "Logs",
    "": "Processes",
}
NAMED = "named"  # the word of a command line that is no flag's: the model, as vLLM takes it
REPO = Path(__file__).resolve().parent.parent
PROFILES = REPO / "configs" / "profiles"
EMBEDDED_NAME = "pixelferry-demo"
EMBEDDED_MODEL = REPO / "model" / "embedded" / EMBEDDED_NAME
PREFIX = "PIXELFERRY_"
KEY_VARIABLE = PREFIX + "API_KEY"
CHECKS_VARIABLE = PREFIX + "CHECK_LAUNCHES"  # 1: the operators of an NPU are asked by their rules; docs/npu.md
# Asked for by name, these see a picture at the checkpoint's own size. "auto" does not promise one of them.
FAST_DEVICES = ("npu", "cuda")

# What Kubernetes writes into every pod for a Service whose name begins with "pixelferry"; none of it is ours.
SERVICE_LINK = re.compile(
    r"([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def load_config(argv: Sequence[str], env: Mapping[str, str] | None = None) -> ServeConfig:
    """The frozen configuration, from (weakest first) defaults, profile, environment and command line.

    `argv` follows `serve`; `env` defaults to the process's own. Raises SettingsError, naming flag, variable or profile
    key, for anything unknown or out of range. `--help` and `--version` print and exit with 0.
    """
    env = os.environ if env is None else env
    known, unknown = _parser().parse_known_args(list(argv))
    if unknown:
        raise SettingsError(_unrecognized(unknown, argv))
    flags = vars(known)
    _take_named(flags, argv)
    profile = flags.pop("profile") or env.get(PREFIX + "PROFILE")
    values: dict[str, Any] = {}
    if profile:
        values.update(_from_profile(profile))
    values.update(_from_env(env))
    for setting in SETTINGS:
        given = flags[setting.name]
        if given is not None:
            values[setting.name] = setting.parse(given, setting.flag)
    config = _build(values, traces_asked(env))
    checks = env.get(CHECKS_VARIABLE, "0")
    if checks not in ("0", "1"):
        raise SettingsError(f"{CHECKS_VARIABLE}: expected 0 or 1, got {checks!r}")
    return replace(config, engine=replace(config.engine, check_launches=checks == "1"))


def install_command(extra: str) -> str:
    """What to type for an extra of pyproject.toml: into a checkout as it is, beside an installed wheel by its parts."""
    pip = f"{sys.executable} -m pip install"
    if (REPO / "pyproject.toml").is_file():
        return f"{pip} -c {REPO}/constraints/cpu.txt -e '{REPO}[{extra}]'"
    listed = (line.split(";") for line in importlib.metadata.requires("pixelferry") or ())
    return " ".join([pip, *(f"'{one.strip()}'" for one, *marks in listed if f'extra == "{extra}"' in "".join(marks))])


def child_env(overrides: Mapping[str, str]) -> dict[str, str]:
    """This process's own environment with `overrides`, without the keys: a child has no use for them."""
    own = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
    return {**own, **overrides}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pixelferry serve",
        usage="%(prog)s [MODEL] [FLAG ...]",
        description="Serve one checkpoint over HTTP. Without --model: the embedded demo model.",
        epilog="Every flag is also an environment variable (PIXELFERRY_MAX_PIXELS) and a profile key (max_pixels); "
        "the command line wins over the environment, the environment over the profile.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pixelferry {build()}", help="print the version")
    parser.add_argument("--profile", metavar="NAME", help="a name in configs/profiles, or a path to a .toml file")
    parser.add_argument(NAMED, nargs="?", metavar="MODEL", help="the same as --model MODEL")
    groups = {section: parser.add_argument_group(title) for section, title in SECTIONS.items()}
    for setting in SETTINGS:
        group, text = groups[setting.section], setting.help_text().replace("%", "%%")
        if setting.kind == "switch":  # --access-log, and --no-access-log
            switch = argparse.BooleanOptionalAction
            group.add_argument(setting.flag, dest=setting.name, action=switch, default=None, help=text)
        else:
            action = "append" if setting.kind in REPEATABLE else "store"
            group.add_argument(setting.flag, dest=setting.name, metavar=setting.metavar, action=action, help=text)
    return parser


def _from_env(env: Mapping[str, str]) -> dict[str, Any]:
    known = {PREFIX + setting.name.upper(): setting for setting in SETTINGS}
    values: dict[str, Any] = {}
    for variable in sorted(name for name in env if name.startswith(PREFIX)):
        rest = variable.removeprefix(PREFIX)
        if variable in known and not LINK_VALUE.match(env[variable]):
            setting = known[variable]
            values[setting.name] = setting.parse(_split(setting, env[variable]), variable)
        elif rest != "PROFILE" and variable != CHECKS_VARIABLE and not SERVICE_LINK.fullmatch(rest):
            meant = did_you_mean(variable, known) or "; `pixelferry serve --help` lists them"
            raise SettingsError(f"{variable}: no such setting{meant}")
    return values


def _split(setting: Setting, text: str) -> str | list[str]:
    """A variable's text; of a setting that may be repeated, its parts."""
    if setting.kind not in REPEATABLE:
        return text
    return [part for part in text.split(REPEATABLE[setting.kind]) if part]


def _unrecognized(words: Sequence[str], argv: Sequence[str]) -> str:
    """Which words are, and what was meant, without what may be a key: `--api-kye sk-1`, `--api-key sk-1 sk-2`."""
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    if any(word.startswith("--api") for word in argv):
        words = flags or ["a word after --api-key"]
    known = [setting.flag for setting in SETTINGS] + ["--profile", "--version", "--help"]
    meant = [f"; {foreign}" if (foreign := _foreign(flag)) else did_you_mean(flag, known) for flag in flags]
    return f"unrecognized arguments: {' '.join(words)}{''.join(meant)}"


def _foreign(flag: str) -> str:
    """What to type in the place of another program's flag; empty of a flag that is none."""
    if flag in BY_NAME:
        return str(BY_NAME[flag])
    if flag not in DOCKERS:
        return ""
    pool = ", and --shm-mib here says how much of it the server takes" if flag == "--shm-size" else ""
    return f"{flag} is a flag of docker run: it stands in front of the image's name{pool}"


def _take_named(flags: dict[str, Any], argv: Sequence[str]) -> None:
    """`serve ORG/NAME` is `serve --model ORG/NAME`. Raises SettingsError for two models, and for what may be a key."""
    named = flags.pop(NAMED)
    if named is None:
        return
    if any(word.startswith("--api") for word in argv[: argv.index(named)]):
        raise SettingsError(_unrecognized([named], argv))
    if flags["model"] is not None:
        raise SettingsError(f"one model is served, and two are named: {named} and --model {flags['model']}")
    flags["model"] = named


def _from_profile(name: str) -> dict[str, Any]:
    path = Path(name) if name.endswith(".toml") else PROFILES / f"{name}.toml"
    where = f"--profile {name}" + ("" if str(path) == name else f" ({path})")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(sorted(entry.stem for entry in PROFILES.glob("*.toml")))
        raise SettingsError(f"{where}: cannot be read: {error.strerror} (known names: {known})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: not valid TOML: {_toml_error(error, path)}") from None
    known_settings = {setting.name: setting for setting in SETTINGS}
    values: dict[str, Any] = {}
    for key, raw in table.items():
        if key not in known_settings:
            if isinstance(raw, dict):
                raise SettingsError(f"{where}: [{key}]: profiles have no tables: each setting stands by itself")
            raise SettingsError(f"{where}: the unknown key {key!r}{did_you_mean(key, known_settings)}")
        setting = known_settings[key]
        source = f"--profile {name}: {key}"
        if isinstance(raw, str) and setting.kind in ("int", "float", "switch"):
            raise SettingsError(f"{source}: {raw!r} is a text in {path}: write it without quotes")
        values[key] = setting.parse(raw, source)
    return values


def _toml_error(error: Exception, path: Path) -> str:
    """What the parser says, with the last line where it only says that the document ended."""
    said = str(error)
    if isinstance(error, tomllib.TOMLDecodeError) and "at end of document" in said:
        lines = path.read_text(encoding="utf-8").rstrip().count("\n") + 1
        said = said.replace("at end of document", f"at the end of line {lines}, the last one")
    return said


def _build(values: dict[str, Any], traces: TraceConfig) -> ServeConfig:
    """What is absent keeps the default of ServeConfig."""
    sections: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for setting in SETTINGS:
        if setting.name in values:
            sections[setting.section][setting.field] = values[setting.name]
    if "max_pixels" in values:  # a profile that says the default changes nothing
        default = next(setting.default for setting in SETTINGS if setting.name == "max_pixels")
        sections["media"]["own_pixels"] = "tiles" if values["max_pixels"] == default else "never"
    elif sections["engine"].get("device") in FAST_DEVICES:
        sections["media"]["own_pixels"] = "always"
    config = ServeConfig(model=_model(**sections.pop("model", {})), traces=traces, **sections.pop("", {}))
    parts = {name: replace(getattr(config, name), **given) for name, given in sections.items()}
    config = replace(config, **parts)
    _check_fetching(config.fetch, config.http)
    return config


def _check_fetching(fetch: FetchConfig, http: HttpConfig) -> None:
    """Raise SettingsError for settings of media by URL that contradict each other, or that nothing would look at."""
    # What is drawn on in the end leaves as much room as it takes (RequestBody.pin).
    if fetch.domains and http.client_share == "fair" and 2 * fetch.max_bytes > http.max_inflight_bytes:
        raise SettingsError(
            f"--max-inflight-mib: {http.max_inflight_bytes >> 20} MiB are less than twice the {fetch.max_bytes >> 20} "
            "MiB of --max-fetched-mib, so that such a request with draw_boxes would never find room"
        )
    given = {"network": fetch.networks, "ca": fetch.ca, "proxy": fetch.proxy}
    for name, value in given.items():
        if value and not fetch.domains:
            flag = f"--{'allowed-' if name == 'network' else ''}media-{name}"
            raise SettingsError(f"{flag}: no medium is fetched without --allowed-media-domain")
    if fetch.proxy and EVERY_HOST in fetch.domains:
        raise SettingsError(
            "--allowed-media-domain *: through --media-proxy names alone are checked here, so each host must be named"
        )
    if fetch.proxy and fetch.networks:
        raise SettingsError("--allowed-media-network: through --media-proxy no address is looked at here")


def _model(path: Path | HubModel = EMBEDDED_MODEL, served_name: str | None = None, **rest: Any) -> ModelConfig:
    """A model of a hub is served under its name there, a directory under its own."""
    if isinstance(path, HubModel):
        return ModelConfig(path=Path(), wanted=path, served_name=served_name or path.name, **rest)
    return ModelConfig(path=path, served_name=served_name or path.name, **rest)
