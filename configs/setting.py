"""One setting: its name, place, unit and range, and how its value is read from text or from a profile."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from configs.serve import HubModel, ModelConfig, ServeConfig

Kind = Literal[
    "text", "int", "float", "choice", "switch", "checkpoint", "path", "paths", "file", "written", "prefix", "secrets",
    "origins", "hosts",
]  # fmt: skip
METAVARS = {
    "text": "NAME", "int": "N", "float": "N", "choice": "X", "checkpoint": "DIR|ORG/NAME", "path": "DIR",
    "paths": "DIR", "file": "FILE", "written": "FILE", "prefix": "PATH", "secrets": "KEY",
    "origins": "ORIGIN,...", "hosts": "NAME",
}  # fmt: skip
REPEATABLE: tuple[Kind, ...] = ("paths", "secrets", "hosts")
SECRET = re.compile(r"[\x21-\x7e]+")  # what a header can carry as one word
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?|\[[0-9a-f:.]+\]")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
# No path that is written out as one (/x, ./x, ../x, ~/x) has this form, and no component of it is "..".
_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(\w[\w.-]*(?:/\w[\w.-]*)*))?", re.ASCII)
SWITCH = {"true": True, "false": False}  # as variables and TOML write them

DEFAULTS = ServeConfig(model=ModelConfig(path=Path(), served_name=""))


class SettingsError(ValueError):
    """A setting that cannot be taken: the message names the flag, variable or profile key and what is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`max_pixels` is --max-pixels, PIXELFERRY_MAX_PIXELS and the profile key max_pixels."""

    name: str
    section: str  # the attribute of ServeConfig; "" for ServeConfig itself
    field: str
    kind: Kind
    help: str
    unit: str = ""
    scale: int = 1  # what one unit is in the field's own unit
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def metavar(self) -> str:
        return "|".join(self.choices) if self.choices else (self.unit or METAVARS[self.kind])

    @property
    def default(self) -> Any:
        """In this setting's unit; None where ServeConfig has none."""
        value = getattr(getattr(DEFAULTS, self.section) if self.section else DEFAULTS, self.field)
        if value in (DEFAULTS.model.path, DEFAULTS.model.served_name):
            return None
        return value // self.scale if self.kind == "int" and value is not None else value

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
        if self.kind == "switch":
            return self._switch(raw, source)
        if self.kind in ("paths", "hosts"):
            read = self._directory if self.kind == "paths" else self._host
            return tuple(read(entry, source) for entry in (raw if isinstance(raw, list) else [raw]))
        if self.kind == "checkpoint":
            return self._checkpoint(raw, source)
        if self.kind == "secrets":
            return self._digests(raw if isinstance(raw, list) else [raw], source)
        if self.kind == "origins":
            entries = raw if isinstance(raw, list) else self._text(raw, source).split(",")
            return tuple(self._origin(entry, source) for entry in entries)
        text = self._text(raw, source)
        if self.kind in ("path", "written"):
            return Path(os.path.abspath(text))
        if self.kind == "file" and not os.path.isfile(text):
            raise SettingsError(f"{source}: {os.path.abspath(text)} is not a file that can be found")
        if self.kind == "file":
            return Path(os.path.abspath(text))
        if self.kind == "prefix" and not _PREFIX.fullmatch(text):
            raise SettingsError(f"{source}: expected a path as /llm, without a slash at its end, got {text!r}")
        if self.choices and text not in self.choices:
            raise SettingsError(f"{source}: {text!r} is none of {', '.join(self.choices)}")
        return text

    def _text(self, raw: object, source: str) -> str:
        if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
            raise SettingsError(f"{source}: expected a text that is not empty, got {raw!r}")
        return raw

    def _digests(self, keys: list[object], source: str) -> tuple[bytes, ...]:
        """SHA-256 of each key. Nothing that was given is shown: it may be a key with a slip in it."""
        if not keys or not all(isinstance(key, str) and SECRET.fullmatch(key) for key in keys):
            raise SettingsError(f"{source}: expected a key, which is printable ASCII without blanks, and not empty")
        return tuple(hashlib.sha256(str(key).encode("ascii")).digest() for key in keys)

    def _origin(self, raw: object, source: str) -> str:
        """As a browser sends it: a scheme and a host, and nothing after the port; or "*"."""
        text = self._text(raw, source).strip()
        if text == "*" or _ORIGIN.fullmatch(text):
            return text
        raise SettingsError(f"{source}: {text!r} is no origin, such as https://app.example or http://localhost:3000")

    def _host(self, raw: object, source: str) -> str:
        """As it stands in a URL, without a port; an IPv6 address in brackets."""
        text = self._text(raw, source).strip().lower().removesuffix(".")
        if _HOST.fullmatch(text):
            return text
        raise SettingsError(f"{source}: {text!r} is no host name, such as llm.example.com, without scheme and port")

    def _directory(self, raw: object, source: str) -> Path:
        path = Path(os.path.abspath(self._text(raw, source)))
        if not path.is_dir():
            raise SettingsError(f"{source}: {path} is not a directory")
        return path

    def _checkpoint(self, raw: object, source: str) -> Path | HubModel:
        """A directory, else a name of a hub: what lies here wins."""
        text = self._text(raw, source)
        path = Path(os.path.abspath(text))
        if path.is_dir():
            return path
        named = _HUB_NAME.fullmatch(text)
        if named is None or path.exists():
            raise SettingsError(
                f"{source}: {path} is not a directory, and a model on a hub is named ORG/NAME or ORG/NAME@REVISION"
            )
        return HubModel(named[1], named[2])

    def _switch(self, raw: object, source: str) -> bool:
        """A flag and TOML give a bool, a variable the text of one."""
        value = raw if isinstance(raw, bool) else SWITCH.get(raw) if isinstance(raw, str) else None
        if value is None:
            raise SettingsError(f"{source}: expected true or false, got {raw!r}")
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
