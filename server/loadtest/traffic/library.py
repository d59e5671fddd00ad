"""The media of a run, made or read before its clock starts: generated ones by size, or real ones out of a folder."""

from collections import Counter
from pathlib import Path

import numpy as np

from server.loadtest.traffic.generated import QUESTION, drawing, encoded, photo, sound, video
from server.loadtest.traffic.requests import Medium, medium_of

TYPES = {
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp", ".gif": "image/gif",
    ".bmp": "image/bmp", ".mp4": "video/mp4", ".mov": "video/quicktime", ".webm": "video/webm",
    ".mkv": "video/x-matroska", ".wav": "audio/wav", ".mp3": "audio/mpeg", ".flac": "audio/flac", ".ogg": "audio/ogg",
    ".m4a": "audio/mp4",
}  # fmt: skip


class MediaLibrary:
    """Makes at most `distinct` media of each kind and size, then gives them out again in turn."""

    def __init__(self, seed: int, distinct: int, folder: Path | None = None) -> None:
        """Raises ValueError where the folder holds no media, OSError."""
        self._rng = np.random.default_rng(seed)
        self._distinct = distinct
        self._folder = None if folder is None else read_folder(folder)
        self._made: dict[str, list[Medium]] = {}
        self._taken: Counter[str] = Counter()

    def fresh(self, kind: str, bucket: str) -> Medium:
        """One that was not given before, as long as there are more. Raises ValueError where there is none."""
        if self._folder is not None:
            key, media = kind, self._folder.get(kind, [])
            if not media:
                raise ValueError(f"the folder of media holds no {kind}")
        else:
            key = f"{kind} {bucket}"
            media = self._made.setdefault(key, [])
            if len(media) < self._distinct:
                media.append(generate(self._rng, kind, bucket))
        self._taken[key] += 1
        return media[(self._taken[key] - 1) % len(media)]

    def known(self) -> tuple[Medium, str, str]:
        """A drawing, a question and the answer that the demo model gives to it."""
        picture, answer = drawing(self._rng)
        return medium_of("image", "drawing", "image/png", encoded(picture, "png")), QUESTION, answer


def generate(rng: np.random.Generator, kind: str, bucket: str) -> Medium:
    """One medium of the size that its bucket's name gives: `1280x720 jpeg`, `2 s 320x240`, `3 s`."""
    words = bucket.split()
    if kind == "image":
        width, height = (int(side) for side in words[0].split("x"))
        return medium_of(kind, bucket, f"image/{words[1]}", encoded(photo(rng, width, height), words[1]))
    if kind == "video":
        width, height = (int(side) for side in words[2].split("x"))
        return medium_of(kind, bucket, "video/mp4", video(rng, float(words[0]), width, height))
    return medium_of(kind, bucket, "audio/wav", sound(rng, float(words[0])))


def read_medium(path: Path) -> Medium:
    """A file; its suffix tells what it is. Raises ValueError, OSError."""
    media_type = TYPES.get(path.suffix.lower())
    if media_type is None:
        raise ValueError(f"{path.name} is no picture, video or sound that is known by its suffix")
    return medium_of(media_type.partition("/")[0], path.name, media_type, path.read_bytes())


def read_folder(folder: Path) -> dict[str, list[Medium]]:
    """All media under a folder, by kind, in the order of their names. Raises ValueError, OSError."""
    found: dict[str, list[Medium]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in TYPES and path.is_file():
            medium = read_medium(path)
            found.setdefault(medium.kind, []).append(medium)
    if not found:
        raise ValueError(f"{folder} holds no picture, video or sound that is known by its suffix")
    return found
