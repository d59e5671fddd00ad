"""What a checkpoint directory says about itself: typed reads of its JSON files."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Section = Literal["image_processor", "video_processor", "feature_extractor"]

PROCESSOR_CONFIG = "processor_config.json"
# A section of it -> the keys under which it may stand there, and the file that held it before there were sections.
_SECTIONS: dict[Section, tuple[tuple[str, ...], str]] = {
    "image_processor": (("image_processor",), "preprocessor_config.json"),
    # Where no file speaks of videos, transformers takes the pictures' file for them. We do not: the rules of the
    # family's published code for videos hold then (docs/models.md).
    "video_processor": (("video_processor",), "video_preprocessor_config.json"),
    "feature_extractor": (("feature_extractor", "audio_processor"), "preprocessor_config.json"),
}


class CheckpointError(Exception):
    """A checkpoint that cannot be served: the message names the file and the key."""


class _Required:
    pass


REQUIRED = _Required()


class ConfigSection:
    """The keys of one JSON object, read one by one with their type; what is never read is ignored."""

    def __init__(self, values: dict[str, Any], location: str) -> None:
        self._values = values
        self.location = location

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def __bool__(self) -> bool:
        """Whether there is a key at all."""
        return bool(self._values)

    def origin(self, otherwise: str = "class defaults") -> str:
        """For people: the file and key that hold the values, or what holds where there are none."""
        return self.location if self else f"{otherwise} ({self.location} says nothing)"

    def read(self, kind: type[T], key: str, default: T | _Required = REQUIRED) -> T:
        """A missing or null key takes `default`, a float takes an int. Raises CheckpointError, naming file and key."""
        value = self._values.get(key)
        if value is None:
            if isinstance(default, _Required):
                raise CheckpointError(f"{self.location}: required key {key!r} is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)  # type: ignore[return-value]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(f"{self.location}: {key!r} is {value!r}, expected {kind.__name__}")
        return value

    def expect(self, key: str, supported: Collection[object], default: object = REQUIRED) -> None:
        """Raises CheckpointError when `key` has a value that changes the mathematics and is not `supported`."""
        value = self._values.get(key)
        if value is None:
            value = default
        if value is REQUIRED:
            raise CheckpointError(f"{self.location}: required key {key!r} is missing")
        if value not in supported:
            raise CheckpointError(
                f"{self.location}: {key} = {value!r} is not supported (supported: {', '.join(map(repr, supported))})"
            )

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
    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path}: no config.json here; --model takes a checkpoint directory")
        self.config = self.file("config.json")

    def file(self, name: str) -> ConfigSection:
        """The JSON object in file `name`; an absent file reads as empty."""
        path = self.path / name
        if not path.is_file():
            return ConfigSection({}, name)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{name}: not valid JSON: {error}") from None
        if not isinstance(values, dict):
            raise CheckpointError(f"{name}: not a JSON object")
        return ConfigSection(values, name)

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
