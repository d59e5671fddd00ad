"""What a checkpoint directory says about itself: typed reads of its JSON files."""

import json
import math
import reprlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Section = Literal["image_processor", "video_processor", "feature_extractor"]

# Bounds of what may be said, far beyond what any published checkpoint says: what a network or a table is made from is
# refused before it is made.
MOST_FILE_BYTES = 64 << 20  # of one text file; the largest tokenizer.json has half of it
MOST_NESTED = 64  # objects and lists inside each other
MOST = 1 << 20  # of a width, of heads, and of whatever count this table does not name
_SIDE = 1 << 12  # of a picture, or of a part of one, in pixels
_WORDS = 1 << 24  # of a vocabulary, and of a prompt
_PIXELS = 1 << 40
MOST_OF = {
    **dict.fromkeys(("num_hidden_layers", "encoder_layers", "layers", "depth"), 1 << 10),
    **dict.fromkeys(("vocab_size", "max_position_embeddings", "seq_length", "max_window_size"), _WORDS),
    **dict.fromkeys(("image_size", "patch_size", "window_size"), _SIDE),
    **dict.fromkeys(("min_pixels", "max_pixels", "shortest_edge", "longest_edge"), _PIXELS),
    **dict.fromkeys(("max_source_positions", "n_window"), 1 << 16),
    **dict.fromkeys(("num_mel_bins", "feature_size", "mlp_ratio"), 1 << 10),
    "spatial_merge_size": 1 << 6,
    "chunk_length": 3600,
    "position_id_per_seconds": 10**6,
    "seconds_per_chunk": 10**6,
}
_MOST_SAID = 1000  # characters of an error
_MOST_NUMBER = 1 << 53  # of any other whole number, and so far a float counts

PROCESSOR_CONFIG = "processor_config.json"
_LFS_POINTER = b"version https://git-lfs.github.com/"
# A section of it -> the keys under which it may stand there, and the file that held it before there were sections.
_SECTIONS: dict[Section, tuple[tuple[str, ...], str]] = {
    "image_processor": (("image_processor",), "preprocessor_config.json"),
    # Where no file speaks of videos, transformers takes the pictures' file for them. We do not: the rules of the
    # family's published code for videos hold then (docs/models.md).
    "video_processor": (("video_processor",), "video_preprocessor_config.json"),
    "feature_extractor": (("feature_extractor", "audio_processor"), "preprocessor_config.json"),
}


class CheckpointError(Exception):
    """A checkpoint that cannot be served: the message names the file and the key.

    Names and values in it are the checkpoint's own words: they neither fill a log nor move a terminal's cursor.
    """

    def __init__(self, message: str) -> None:
        if len(message) > _MOST_SAID:
            message = f"{message[: _MOST_SAID * 3 // 4]} ... {message[-_MOST_SAID // 4 :]}"
        super().__init__("".join(c if c.isprintable() else "?" for c in message))


_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = 80


def shown(value: object) -> str:
    """A value of a file as an error message shows it: short, however large it is."""
    return _shown.repr(value)


def unquoted(value: object) -> str:
    """The same of a value that is a word."""
    return value[:80] if isinstance(value, str) else shown(value)


def whole(value: Any) -> Any:
    """A whole number as an int, also where a file has it as a float; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


REQUIRED: Any = object()  # a default: there is none


def refuse_pointer(name: str, content: bytes) -> None:
    """Raises CheckpointError where the file's first bytes are those of what Git LFS leaves in a file's place."""
    if content.startswith(_LFS_POINTER):
        raise CheckpointError(f"{name}: a Git LFS pointer, not the file: run `git lfs pull` in its directory")


class ConfigSection:
    """The keys of one JSON object, read one by one with their type; what is never read is ignored."""

    def __init__(self, values: dict[str, Any], location: str, *, missing: bool = False) -> None:
        """missing: there is no such file, so that no key can be there."""
        self._values = values
        self.location = location
        self.missing = missing

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def __bool__(self) -> bool:
        """Whether there is a key at all."""
        return bool(self._values)

    def keys(self) -> tuple[str, ...]:
        return tuple(self._values)

    def origin(self, otherwise: str = "class defaults") -> str:
        """For people: the file and key that hold the values, or what holds where there are none."""
        silent = "is missing" if self.missing else "says nothing"
        return self.location if self else f"{otherwise} ({self.location} {silent})"

    def read(self, kind: type[T], key: str, default: T = REQUIRED) -> T:
        """A missing or null key takes `default`, a float takes an int. Raises CheckpointError, naming file and key.

        Numbers are finite. A whole number may be written as a float: JSON knows no difference.
        """
        value = self._values.get(key)
        if value is None:
            if default is REQUIRED:
                raise CheckpointError(f"{self.location}: required key {key!r} is missing")
            return default
        if kind is int:
            value = whole(value)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MOST_NUMBER:
            raise self._error(key, f"a number up to {_MOST_NUMBER}")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)  # type: ignore[return-value]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self._error(key, kind.__name__)
        if isinstance(value, float) and not math.isfinite(value):
            raise self._error(key, "a finite number")
        return value

    def count(self, key: str, default: int = REQUIRED, *, least: int = 1) -> int:
        """A whole number from `least` to what MOST_OF says, as `read`; `default` is not compared."""
        value, most = self.read(int, key, default), MOST_OF.get(key, MOST)
        if key in self and not least <= value <= most:
            raise self._error(key, f"a whole number from {least} to {most}")
        return value

    def token_id(self, key: str, default: int = REQUIRED) -> int:
        """The same of an id of a vocabulary."""
        value = self.read(int, key, default)
        if key in self and not 0 <= value < _WORDS:
            raise self._error(key, f"an id from 0 to {_WORDS - 1}")
        return value

    def positive(self, key: str, default: float = REQUIRED) -> float:
        """A number above 0 and up to what MOST_OF says, as `read`."""
        value, most = self.read(float, key, default), MOST_OF.get(key)
        if key in self and not 0 < value <= (most or _MOST_NUMBER):
            raise self._error(key, "a number above 0" + (f" and up to {most}" if most else ""))
        return value

    def numbers(self, key: str, default: Sequence[float] = REQUIRED, *, n: int = 3) -> tuple[float, ...]:
        """A list of `n` finite numbers, as `read`."""
        values = self.read(list, key, default if default is REQUIRED else list(default))
        if len(values) != n or not all(type(value) in (int, float) and abs(value) <= _MOST_NUMBER for value in values):
            raise self._error(key, f"a list of {n} numbers")
        return tuple(values)

    def _error(self, key: str, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.location}: {key!r} is {shown(self._values[key])}, expected {expected}")

    def expect(self, key: str, supported: Collection[object], default: object = REQUIRED) -> None:
        """Raises CheckpointError when `key` has a value that changes the mathematics and is not `supported`."""
        value = self.read(object, key, default)
        if not any(value == one for one in supported):  # a list has no hash
            taken = ", ".join(map(repr, supported))
            raise CheckpointError(f"{self.location}: {key} = {shown(value)} is not supported (supported: {taken})")

    def child(self, key: str) -> "ConfigSection":
        """The object under `key`; an absent one reads as empty, so that class defaults apply."""
        value = self._values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.location}: {key!r} is not an object")
        return ConfigSection(value, f"{self.location}: {key}")

    def merged(self, other: "ConfigSection") -> "ConfigSection":
        """These keys, and those of `other` where these have none (old flat configs hold the text keys outside)."""
        return ConfigSection(
            {**other._values, **{k: v for k, v in self._values.items() if v is not None}}, self.location
        )


def text_config(config: ConfigSection) -> ConfigSection:
    """The language model's keys: under `text_config` in new files, beside it in old ones. The inner ones win."""
    return config.child("text_config").merged(config)


class Checkpoint:
    def __init__(self, path: Path, chat_template: Path | None = None, *, sizes_alone: bool = False) -> None:
        """chat_template: the operator's file, in the place of whatever template the directory holds.

        sizes_alone: nothing is served of it, so files beside config.json may be missing that networks are checked by.
        """
        self.path = path
        self.sizes_alone = sizes_alone
        self.chat_template = chat_template
        if self.text("config.json") is None:
            raise CheckpointError(f"{path}: no config.json here; --model takes a checkpoint directory")
        self.config = self.file("config.json")

    def file(self, name: str) -> ConfigSection:
        """The JSON object in file `name`; an absent file reads as empty."""
        text = self.text(name)
        if text is None:
            return ConfigSection({}, name, missing=True)
        try:
            values = json.loads(text)
        except ValueError as error:
            raise CheckpointError(f"{name}: not valid JSON: {error}") from None
        except RecursionError:
            raise _nested(name) from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{name}: not a JSON object")
        _check_depth(values, name)
        return ConfigSection(values, name)

    def text(self, name: str) -> str | None:
        """What the text file `name` holds; None where there is none.

        Raises CheckpointError for a huge or torn one, and for one that may not be read or looked for.
        """
        path = self.path / name
        try:
            if not path.is_file():
                return None
            with path.open("rb") as file:
                content = file.read(MOST_FILE_BYTES + 1)
            if len(content) > MOST_FILE_BYTES:
                raise CheckpointError(f"{name}: more than {MOST_FILE_BYTES >> 20} MiB, which no published one has")
            refuse_pointer(name, content)
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{name}: not UTF-8 at byte {error.start}") from None
        except OSError as error:
            raise CheckpointError(f"{name}: cannot be read: {error.strerror}") from None

    def section(self, name: Section) -> ConfigSection:
        """How one kind of medium is prepared: processor_config.json's section, else the older file; never merged.

        So does transformers 5 (get_image_processor_dict, get_video_processor_dict, get_feature_extractor_dict), which
        writes the sections instead of the files. `location` of what is found names file and key.
        """
        keys, older = _SECTIONS[name]
        processor = self.file(PROCESSOR_CONFIG)
        for key in keys:
            if key in processor:
                return processor.child(key)
        return self.file(older)

    @property
    def architecture(self) -> str:
        """The first entry of `architectures`, which names the family."""
        names = self.config.read(list, "architectures", [])
        if not names or not isinstance(names[0], str):
            raise CheckpointError("config.json: 'architectures' is missing; it names the model class")
        return names[0]


def _check_depth(values: dict[str, Any], name: str) -> None:
    """Level by level: whoever walks through these values later may do so by calling itself."""
    level: list[Any] = [values]
    for _ in range(MOST_NESTED):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _nested(name)


def _nested(name: str) -> CheckpointError:
    return CheckpointError(f"{name}: objects and lists lie more than {MOST_NESTED} deep inside each other")
