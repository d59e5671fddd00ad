"""Requests out of a file, in its order: one JSON object a line, so that several tools can send the same ones."""

import json
from pathlib import Path

from server.loadtest.traffic.arrivals import TraceLine
from server.loadtest.traffic.asks import Ask, Medium, medium_of
from server.loadtest.traffic.library import TYPES


class ListError(ValueError):
    """A list that cannot be used; the message names file and line."""


class RequestList:
    """Gives the requests of a file in turn, from the first again after the last.

    A line has `prompt` (or `text`), and may have `max_tokens` (or `output_tokens`), `expect` (the right answer) and
    `media`, a list of files beside the list.
    """

    def __init__(self, path: Path, max_tokens: int) -> None:
        """Raises ListError, OSError."""
        self._asks: list[Ask] = []
        self._media: dict[Path, Medium] = {}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                try:
                    self._asks.append(self._ask(json.loads(line), path.parent, max_tokens))
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise ListError(f"{path}:{number}: no usable request ({error!r})") from None
        if not self._asks:
            raise ListError(f"{path}: holds no request")

    def __len__(self) -> int:
        return len(self._asks)

    def make(self, index: int, line: TraceLine | None = None) -> Ask:
        """Request number `index`; a line of a trace may say how long its answer is."""
        ask = self._asks[index % len(self._asks)]
        tokens = ask.max_tokens if line is None or line.max_tokens is None else line.max_tokens
        return Ask(index, ask.kind, ask.bucket, ask.prompt, ask.media, tokens, expect=ask.expect)

    def _ask(self, said: dict[str, object], folder: Path, max_tokens: int) -> Ask:
        prompt = said["prompt"] if "prompt" in said else said["text"]
        expect = said.get("expect")
        if not isinstance(prompt, str) or not isinstance(expect, str | None):
            raise ValueError("prompt and expect are texts")
        names = said.get("media", [])
        if not isinstance(names, list):
            raise ValueError("media is a list of files")
        media = tuple(self._medium(folder / str(name)) for name in names)
        kind = "+".join(dict.fromkeys(medium.kind for medium in media)) or "text"
        tokens = int(str(said.get("max_tokens") or said.get("output_tokens") or max_tokens))
        return Ask(0, kind, "listed", prompt, media, tokens, expect=expect)

    def _medium(self, path: Path) -> Medium:
        if path not in self._media:
            if path.suffix.lower() not in TYPES:
                raise ValueError(f"{path.name} is no picture, video or sound that is known by its suffix")
            kind, media_type = TYPES[path.suffix.lower()]
            self._media[path] = medium_of(kind, path.name, media_type, path.read_bytes())
        return self._media[path]
