"""Requests out of a file, in its order: one JSON object a line, so that several tools can send the same ones."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from server.loadtest.traffic.arrivals import TraceLine
from server.loadtest.traffic.library import read_medium
from server.loadtest.traffic.requests import SampleRequest


class ListedRequest(msgspec.Struct):
    """A line. `text` and `output_tokens` are the names that other tools have for `prompt` and `max_tokens`."""

    prompt: str | None = None
    text: str | None = None
    max_tokens: int | None = None
    output_tokens: int | None = None
    expect: str | None = None  # the right answer
    media: list[str] = []  # files beside the list


class RequestList:
    """Gives the requests of a file in turn, from the first again after the last."""

    def __init__(self, path: Path, max_tokens: int) -> None:
        """Raises ValueError, which names file and line, and OSError."""
        read = cache(read_medium)
        self._requests: list[SampleRequest] = []
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not text.strip():
                continue
            try:
                line = msgspec.json.decode(text, type=ListedRequest, strict=False)
                prompt = line.prompt if line.prompt is not None else line.text
                if prompt is None:
                    raise ValueError("it has no prompt")
                media = tuple(read(path.parent / name) for name in line.media)
            except (ValueError, OSError) as error:
                raise ValueError(f"{path}:{number}: no usable request ({error})") from None
            kind = "+".join(dict.fromkeys(medium.kind for medium in media)) or "text"
            tokens = line.max_tokens or line.output_tokens or max_tokens
            self._requests.append(SampleRequest(0, kind, "listed", prompt, media, tokens, expect=line.expect))
        if not self._requests:
            raise ValueError(f"{path}: holds no request")

    def make(self, index: int, line: TraceLine | None = None) -> SampleRequest:
        """Request number `index`; a line of a trace may say how long its answer is."""
        request = self._requests[index % len(self._requests)]
        tokens = request.max_tokens if line is None else line.max_tokens or request.max_tokens
        return replace(request, index=index, max_tokens=tokens)
