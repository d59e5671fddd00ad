"""One setting: its name, place, unit and range, and how its value is read from text or from a profile."""

import hashlib
import ipaddress
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

SettingKind = Literal[
    "text", "int", "float", "choice", "switch", "checkpoint", "path", "paths", "file", "written", "prefix", "secrets",
    "origins", "hosts", "domains", "networks", "proxy",
]  # fmt: skip
METAVARS: dict[SettingKind, str] = {
    "text": "NAME", "int": "N", "float": "N", "checkpoint": "DIR|ORG/NAME", "path": "DIR", "paths": "DIR",
    "file": "FILE", "written": "FILE", "prefix": "PATH", "secrets": "KEY", "origins": "ORIGIN,...", "hosts": "NAME",
    "domains": "HOST", "networks": "CIDR", "proxy": "URL",
}  # fmt: skip
OF_TYPE: dict[type, SettingKind] = {str: "text", int: "int", float: "float", bool: "switch"}
UNITS = {"KiB": 1 << 10, "KiB/s": 1 << 10, "MiB": 1 << 20, "megapixels": 10**6}  # those that fields do not count in
REPEATABLE: dict[SettingKind, str | None] = {  # where a variable's text is split
    "paths": os.pathsep, "secrets": None, "hosts": None, "domains": None, "networks": None,
}  # fmt: skip
SECRET = re.compile(r"[\x21-\x7e]+")  # what a header can carry as one word
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?|\[[0-9a-f:.]+\]")
_DOMAIN = re.compile(r"\*|\.?([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?|\[[0-9a-f:]+\]")
_PROXY = re.compile(r"http://[^\s/?#@\\]+:[0-9]+/?")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
# No path that is written out as one (/x, ./x, ../x, ~/x) has this form, and no component of it is "..".
_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(\w[\w.-]*(?:/\w[\w.-]*)*))?", re.ASCII)
_SWITCH = {"true": True, "false": False}  # as variables and TOML write them


class SettingsError(ValueError):
    """A setting that cannot be taken: the message names the flag, variable or profile key and what is expected."""


Hub = Literal["huggingface", "modelscope"]


class HubModel(msgspec.Struct, frozen=True):
    """A model by its name on a hub."""

    name: str  # ORG/NAME
    revision: str | None = None  # branch, tag or commit; None: the hub's default branch

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


@dataclass(frozen=True, slots=True)
class Setting:
    """`max_pixels` is --max-pixels, PIXELFERRY_MAX_PIXELS and the profile key max_pixels.

    A field of a configuration is one by this annotation; `declared` adds what the field itself tells.
    """

    help: str
    low: float | None = None
    high: float | None = None
    unit: str = ""
    name: str = ""  # the field's own when empty
    kind: SettingKind = "text"  # else that of the field's type
    section: str = ""  # the attribute of ServeConfig; "" for ServeConfig itself
    field: str = ""
    default: Any = None  # in this setting's unit; None where the field has none
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def metavar(self) -> str:
        return "|".join(self.choices) if self.choices else (self.unit or METAVARS[self.kind])

    @property
    def scale(self) -> int:
        """What one unit is in the field's own."""
        return UNITS.get(self.unit, 1)

    @property
    def shown_default(self) -> str:
        return str(self.default).lower() if self.kind == "switch" else str(self.default)

    def help_text(self) -> str:
        notes = [] if self.default in (None, ()) else [f"default {self.shown_default}"]
        if self.low is not None and self.high is not None:
            notes.append(f"{self.low} to {self.high}")
        return f"{self.help} [{', '.join(notes)}]" if notes else self.help

    def parse(self, raw: object, source: str) -> Any:
        """The field's value from text or from a TOML value. Raises SettingsError that begins with `source`."""
        if self.kind in ("int", "float"):
            return self._number(raw, source)
        if self.kind in _ENTRIES:
            entries = raw.split(",") if self.kind == "origins" and isinstance(raw, str) else raw
            if not isinstance(entries, list) or (self.kind == "secrets" and not entries):  # no key is a wrong one
                entries = [entries]
            return tuple(_ENTRIES[self.kind](entry, source) for entry in entries)
        value = _READERS.get(self.kind, _text)(raw, source)
        if self.choices and value not in self.choices:
            raise SettingsError(f"{source}: {value!r} is none of {', '.join(self.choices)}")
        return value

    def _number(self, raw: object, source: str) -> int | float:
        read = int if self.kind == "int" else float
        wanted = "a whole number" if self.kind == "int" else "a number"
        allowed = (str, int) if self.kind == "int" else (str, int, float)
        if isinstance(raw, bool) or not isinstance(raw, allowed):
            raise SettingsError(f"{source}: expected {wanted}, got {raw!r}")
        try:
            value = read(raw)
        except ValueError:
            raise SettingsError(f"{source}: expected {wanted}, got {raw!r}") from None
        if self.low is not None and self.high is not None and not self.low <= value <= self.high:
            unit = f" {self.unit}" if self.unit else ""
            raise SettingsError(f"{source}: {raw} is outside {self.low:,} to {self.high:,}{unit}")
        return value * self.scale


def declared(owner: type[msgspec.Struct], section: str = "") -> Iterator[Setting]:
    """The settings of a configuration in the order of its fields, those of its sections in their places."""
    hints = get_type_hints(owner, include_extras=True)
    for one in msgspec.structs.fields(owner):
        hint = hints[one.name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from declared(hint, one.name)
        for setting in (found for found in getattr(hint, "__metadata__", ()) if isinstance(found, Setting)):
            base = next(kind for kind in (*get_args(hint.__origin__), hint.__origin__) if kind is not NoneType)
            choices = get_args(hint.__origin__) if get_origin(hint.__origin__) is Literal else ()
            kind = "choice" if choices else setting.kind if setting.kind != "text" else OF_TYPE[base]
            default = None if one.required else one.default
            if setting.unit in UNITS and default is not None:
                default //= setting.scale
            yield replace(
                setting, name=setting.name or one.name, kind=kind, section=section, field=one.name, default=default,
                choices=choices,
            )  # fmt: skip


def _text(raw: object, source: str) -> str:
    if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
        raise SettingsError(f"{source}: expected a text that is not empty, got {raw!r}")
    return raw


def _path(raw: object, source: str) -> Path:
    return Path(os.path.abspath(_text(raw, source)))


def _mode(path: Path, source: str) -> int:
    """Of what lies there, as stat(2) has it; 0: nothing does. Raises SettingsError where nobody may say so."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise SettingsError(f"{source}: {path} cannot be read: {error.strerror}") from None


def _directory(raw: object, source: str) -> Path:
    path = _path(raw, source)
    if not stat.S_ISDIR(_mode(path, source)):
        raise SettingsError(f"{source}: {path} is not a directory")
    return path


def _file(raw: object, source: str) -> Path:
    path = _path(raw, source)
    if not stat.S_ISREG(_mode(path, source)):
        raise SettingsError(f"{source}: {path} is not a file that can be found")
    return path


def _prefix(raw: object, source: str) -> str:
    text = _text(raw, source)
    if not _PREFIX.fullmatch(text):
        raise SettingsError(f"{source}: expected a path as /llm, without a slash at its end, got {text!r}")
    return text


def _checkpoint(raw: object, source: str) -> Path | HubModel:
    """A directory, else a name of a hub: what lies here wins."""
    path, named = _path(raw, source), _HUB_NAME.fullmatch(_text(raw, source))
    mode = _mode(path, source)
    if stat.S_ISDIR(mode):
        return path
    if named is None or mode:
        raise SettingsError(
            f"{source}: {path} is not a directory, and a model on a hub is named ORG/NAME or ORG/NAME@REVISION"
        )
    return HubModel(named[1], named[2])


def _switch(raw: object, source: str) -> bool:
    """A flag and TOML give a bool, a variable the text of one."""
    value = raw if isinstance(raw, bool) else _SWITCH.get(raw) if isinstance(raw, str) else None
    if value is None:
        raise SettingsError(f"{source}: expected true or false, got {raw!r}")
    return value


def _digest(raw: object, source: str) -> bytes:
    """SHA-256 of a key. Nothing that was given is shown: it may be a key with a slip in it."""
    if not isinstance(raw, str) or not SECRET.fullmatch(raw):
        raise SettingsError(f"{source}: expected a key, which is printable ASCII without blanks, and not empty")
    return hashlib.sha256(raw.encode("ascii")).digest()


def _origin(raw: object, source: str) -> str:
    """As a browser sends it: a scheme and a host, and nothing after the port; or "*"."""
    text = _text(raw, source).strip()
    if text == "*" or _ORIGIN.fullmatch(text):
        return text
    raise SettingsError(f"{source}: {text!r} is no origin, such as https://app.example or http://localhost:3000")


def _host(raw: object, source: str) -> str:
    """As it stands in a URL, without a port; an IPv6 address in brackets."""
    text = _text(raw, source).strip().lower().removesuffix(".")
    if _HOST.fullmatch(text):
        return text
    raise SettingsError(f"{source}: {text!r} is no host name, such as llm.example.com, without scheme and port")


def _domain(raw: object, source: str) -> str:
    text = _text(raw, source).strip().lower().removesuffix(".")
    if _DOMAIN.fullmatch(text):
        return text
    raise SettingsError(
        f"{source}: {text!r} is no host name, such as media.example.com, .example.com (it and all below it) or *, "
        "without scheme and port; other letters than ASCII are written in Punycode (xn--...)"
    )


def _network(raw: object, source: str) -> str:
    text = _text(raw, source).strip()
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise SettingsError(f"{source}: {text!r} is no network, such as 10.1.0.0/16 or fd00:1::/64") from None


def _proxy(raw: object, source: str) -> str:
    text = _text(raw, source).strip()
    if _PROXY.fullmatch(text):
        return text
    raise SettingsError(f"{source}: expected http://HOST:PORT, without user and password")


_READERS: dict[SettingKind, Callable[[object, str], Any]] = {
    "switch": _switch, "checkpoint": _checkpoint, "path": _path, "file": _file, "written": _path, "prefix": _prefix,
    "proxy": _proxy,
}  # fmt: skip
_ENTRIES: dict[SettingKind, Callable[[object, str], Any]] = {  # of tuples
    "paths": _directory, "secrets": _digest, "origins": _origin, "hosts": _host,
    "domains": _domain, "networks": _network,
}  # fmt: skip
