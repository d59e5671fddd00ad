"""The media of a run, made or read before its clock starts: generated ones by size, or real ones out of a folder."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np

from server.loadtest.traffic.asks import Medium, medium_of
from server.loadtest.traffic.clips import sound, video
from server.loadtest.traffic.pictures import FORMATS, QUESTION, drawing, encoded, photo

TYPES = {
    ".jpg": ("image", "image/jpeg"), ".jpeg": ("image", "image/jpeg"), ".png": ("image", "image/png"),
    ".webp": ("image", "image/webp"), ".gif": ("image", "image/gif"), ".bmp": ("image", "image/bmp"),
    ".mp4": ("video", "video/mp4"), ".mov": ("video", "video/quicktime"), ".webm": ("video", "video/webm"),
    ".mkv": ("video", "video/x-matroska"), ".wav": ("audio", "audio/wav"), ".mp3": ("audio", "audio/mpeg"),
    ".flac": ("audio", "audio/flac"), ".ogg": ("audio", "audio/ogg"), ".m4a": ("audio", "audio/mp4"),
}  # fmt: skip


class NoMedia(ValueError):
    """A folder holds nothing of a kind that the mix asks for."""


class Library:
    """Makes at most `distinct` media of each kind and size, then gives them out again in turn."""

    def __init__(self, seed: int, distinct: int, folder: Path | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._distinct = distinct
        self._folder = None if folder is None else read_folder(folder)
        self._made: dict[tuple[str, str], list[Medium]] = {}
        self._turns: dict[tuple[str, str], Iterator[Medium]] = {}

    def fresh(self, kind: str, bucket: str) -> Medium:
        """A new one of that size while there may be more. Raises NoMedia."""
        key = (kind, "") if self._folder is not None else (kind, bucket)
        if key in self._turns:
            return next(self._turns[key])
        if self._folder is not None:
            found = self._folder.get(kind)
            if not found:
                raise NoMedia(f"the folder of media holds no {kind}")
            self._turns[key] = cycle(found)
            return next(self._turns[key])
        made = self._made.setdefault(key, [])
        made.append(generate(self._rng, kind, bucket))
        if len(made) >= self._distinct:
            self._turns[key] = cycle(made)
        return made[-1]

    def known(self) -> tuple[Medium, str, str]:
        """A drawing, a question and the answer that the demo model gives to it."""
        picture, answer = drawing(self._rng)
        return medium_of("image", "drawing", "image/png", encoded(picture, "png")), QUESTION, answer


def generate(rng: np.random.Generator, kind: str, bucket: str) -> Medium:
    """One medium of the size that its bucket's name gives: `1280x720 jpeg`, `2 s 320x240`, `3 s`."""
    words = bucket.split()
    if kind == "image":
        width, height = (int(side) for side in words[0].split("x"))
        content = encoded(photo(rng, width, height), words[1])
        return medium_of(kind, bucket, FORMATS[words[1]][1], content)
    if kind == "video":
        width, height = (int(side) for side in words[2].split("x"))
        return medium_of(kind, bucket, "video/mp4", video(rng, float(words[0]), width, height))
    return medium_of(kind, bucket, "audio/wav", sound(rng, float(words[0])))


def read_folder(folder: Path) -> dict[str, list[Medium]]:
    """All media under a folder, by kind, in the order of their names. Raises NoMedia, OSError."""
    found: dict[str, list[Medium]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in TYPES and path.is_file():
            kind, media_type = TYPES[path.suffix.lower()]
            found.setdefault(kind, []).append(medium_of(kind, path.name, media_type, path.read_bytes()))
    if not found:
        raise NoMedia(f"{folder} holds no picture, video or sound that is known by its suffix")
    return found
