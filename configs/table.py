"""The table of settings: for each its one name, place in ServeConfig, unit, range and help."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from configs.serve import MIB, Device, Dtype, ModelConfig, ServeConfig

Kind = Literal["text", "int", "float", "choice", "directory", "path", "paths", "origins"]
METAVARS = {
    "text": "NAME", "int": "N", "float": "N", "choice": "X", "directory": "DIR", "path": "DIR", "paths": "DIR",
    "origins": "ORIGIN,...",
}  # fmt: skip

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")

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
        if self.section == "model":
            return None
        value = getattr(getattr(DEFAULTS, self.section) if self.section else DEFAULTS, self.field)
        return value // self.scale if self.kind == "int" and value is not None else value

    def help_text(self) -> str:
        notes = [] if self.default in (None, ()) else [f"default {self.default}"]
        if self.low is not None and self.high is not None:
            notes.append(f"{self.low} to {self.high}")
        return f"{self.help} [{', '.join(notes)}]" if notes else self.help

    def parse(self, raw: object, source: str) -> Any:
        """The field's value from text or from a TOML value. Raises SettingsError that begins with `source`."""
        if self.kind in ("int", "float"):
            return self._number(raw, source)
        if self.kind == "paths":
            entries = raw if isinstance(raw, list) else [raw]
            return tuple(self._directory(entry, source) for entry in entries)
        if self.kind == "origins":
            entries = raw if isinstance(raw, list) else self._text(raw, source).split(",")
            return tuple(_origin(self._text(entry, source).strip(), source) for entry in entries)
        if self.kind == "directory":
            return self._directory(raw, source)
        text = self._text(raw, source)
        if self.kind == "path":
            return Path(os.path.abspath(text))
        if self.choices and text not in self.choices:
            raise SettingsError(f"{source}: {text!r} is none of {', '.join(self.choices)}")
        return text

    def _text(self, raw: object, source: str) -> str:
        if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
            raise SettingsError(f"{source}: expected a text that is not empty, got {raw!r}")
        return raw

    def _directory(self, raw: object, source: str) -> Path:
        path = Path(os.path.abspath(self._text(raw, source)))
        if not path.is_dir():
            raise SettingsError(f"{source}: {path} is not a directory")
        return path

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


def _origin(text: str, source: str) -> str:
    """As a browser sends it: a scheme and a host, and nothing after the port."""
    if text == "*" or ORIGIN.fullmatch(text):
        return text
    raise SettingsError(f"{source}: {text!r} is no origin, such as https://app.example or http://localhost:3000")


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="model", section="model", field="path", kind="directory",
        help="checkpoint directory as it lies on the hub; the embedded demo model when absent",
    ),
    Setting(
        name="served_model_name", section="model", field="served_name", kind="text",
        help="the name that clients ask for; the directory's own name when absent",
    ),
    Setting(name="host", section="http", field="host", kind="text", help="address to listen on"),
    Setting(
        name="port", section="http", field="port", kind="int", low=0, high=65535,
        help="TCP port to listen on; 0 takes a free one",
    ),
    Setting(
        name="max_body_mib", section="http", field="max_body_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=4096, help="largest request body; a larger one is a 413",
    ),
    Setting(
        name="max_inflight_mib", section="http", field="max_inflight_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=1 << 20, help="bodies of all unfinished requests together; what comes on top is a 429",
    ),
    Setting(
        name="max_requests", section="http", field="max_requests", kind="int", low=1, high=65536,
        help="requests accepted and unfinished at once; the next one is a 429",
    ),
    Setting(
        name="max_n", section="http", field="max_n", kind="int", low=1, high=64,
        help="answers that one chat may ask for (`n`); each takes a place in the engine of its own",
    ),
    Setting(
        name="drain_seconds", section="http", field="drain_seconds", kind="float", unit="seconds", low=0, high=3600,
        help="how long SIGTERM waits for running requests",
    ),
    Setting(
        name="allowed_origins", section="http", field="allowed_origins", kind="origins",
        help="origins of web pages whose scripts may use this server (CORS), with commas between them, or * for all; "
        "none by default",
    ),
    Setting(
        name="allow_media_root", section="media", field="roots", kind="paths",
        help="directory whose files a chat may name by path; repeatable; none by default",
    ),
    Setting(
        name="max_items", section="media", field="max_items", kind="int", low=0, high=4096,
        help="media items in one prompt, history included",
    ),
    Setting(
        name="max_file_mib", section="media", field="max_file_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=4096, help="largest media file, local or in a data: URL, as encoded",
    ),
    Setting(
        name="max_source_pixels", section="media", field="max_source_pixels", kind="int", unit="pixels", low=1,
        high=1 << 32, help="width x height that an image's header may announce; more is refused before decoding",
    ),
    Setting(
        name="max_pixels", section="media", field="max_pixels", kind="int", unit="pixels", low=3136, high=1 << 28,
        help="pixels of one image or frame after resizing; caps the checkpoint's own bound, which takes its place when "
        "absent with --device npu or cuda",
    ),
    Setting(
        name="max_frames", section="media", field="max_frames", kind="int", unit="frames", low=2, high=16384,
        help="frames of one video that reach the model; also the longest list of frames",
    ),
    Setting(
        name="max_video_seconds", section="media", field="max_video_seconds", kind="float", unit="seconds", low=1,
        high=86400, help="length of one video; a longer one is refused before it is decoded",
    ),
    Setting(
        name="max_decoded_frames", section="media", field="max_decoded_frames", kind="int", unit="frames", low=1,
        high=1 << 20, help="frames of one video decoded to get at those looked at; above full HD they count as more",
    ),
    Setting(
        name="max_video_pixels", section="media", field="max_video_pixels", kind="int", unit="pixels", low=3136,
        high=1 << 32, help="pixels of all frame pairs of one video after resizing: frames / 2 x height x width",
    ),
    Setting(
        name="max_audio_seconds", section="media", field="max_audio_seconds", kind="float", unit="seconds", low=1,
        high=86400, help="length of one sound, also of a video's; decoding a longer one stops there and it is refused",
    ),
    Setting(
        name="shm_root", section="shm", field="root", kind="path",
        help="directory of the shared memory; one directory per user on the machine's shared-memory mount when absent",
    ),
    Setting(
        name="shm_mib", section="shm", field="pool_bytes", kind="int", unit="MiB", scale=MIB, low=1, high=1 << 20,
        help="shared memory that the pool may hold; what does not fit now is a 429",
    ),
    Setting(
        name="device", section="engine", field="device", kind="choice", choices=get_args(Device),
        help="where the model runs; auto takes cuda where torch sees one, else cpu",
    ),
    Setting(
        name="dtype", section="engine", field="dtype", kind="choice", choices=get_args(Dtype),
        help="the model's arithmetic; auto takes the checkpoint's own where the device supports it",
    ),
    Setting(
        name="max_model_len", section="engine", field="max_model_len", kind="int", unit="tokens", low=16, high=1 << 20,
        help="prompt and answer of one request together; the checkpoint's limit, at most 32768, when absent",
    ),
    Setting(
        name="max_seqs", section="engine", field="max_seqs", kind="int", low=1, high=4096,
        help="sequences in the engine at once; further requests queue in the server",
    ),
    Setting(
        name="max_batched_tokens", section="engine", field="max_batched_tokens", kind="int", unit="tokens", low=1,
        high=1 << 20, help="token budget of one engine step; a longer prompt is prefilled in chunks",
    ),
    Setting(
        name="block_size", section="engine", field="block_size", kind="int", unit="tokens", low=1, high=1024,
        help="tokens in one block of the KV cache",
    ),
    Setting(
        name="kv_cache_mib", section="engine", field="kv_cache_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=1 << 24, help="size of the KV cache, instead of its share; at most what max_seqs x max_model_len use",
    ),
    Setting(
        name="kv_cache_share", section="engine", field="kv_cache_share", kind="float", low=0.01, high=1,
        help="share of the memory that is free once the weights are loaded, for the KV cache; at most what max_seqs x "
        "max_model_len use",
    ),
    Setting(
        name="embedding_mib", section="engine", field="embedding_bytes", kind="int", unit="MiB", scale=MIB, low=1,
        high=1 << 24, help="host memory for the encoder outputs of unfinished requests",
    ),
    Setting(
        name="threads", section="engine", field="threads", kind="int", low=1, high=1024,
        help="CPU threads of the engine; torch's own choice when absent",
    ),
    Setting(
        name="workers", section="", field="workers", kind="int", low=1, high=256,
        help="tokenizer worker processes, which decode pictures and build prompts",
    ),
    Setting(
        name="pulse_seconds", section="", field="pulse_seconds", kind="float", unit="seconds", low=1, high=3600,
        help="a worker or engine that is silent for so long is killed and started again",
    ),
    Setting(
        name="step_seconds", section="", field="step_seconds", kind="float", unit="seconds", low=1, high=86400,
        help="how long one engine step or worker job may take; each token, patch and media item adds to it",
    ),
)  # fmt: skip
