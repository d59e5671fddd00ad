"""One request and its media as data, and its body in the two forms that servers take: OpenAI's and native lists."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pybase64

from server.loadtest.options import Options

TYPES = {
    ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp", ".gif": "image/gif",
    ".bmp": "image/bmp", ".mp4": "video/mp4", ".mov": "video/quicktime", ".webm": "video/webm",
    ".mkv": "video/x-matroska", ".wav": "audio/wav", ".mp3": "audio/mpeg", ".flac": "audio/flac", ".ogg": "audio/ogg",
    ".m4a": "audio/mp4",
}  # fmt: skip
AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}  # what input_audio may be called everywhere


@dataclass(frozen=True, slots=True)
class Medium:
    """One picture, video or sound, encoded. `url` and `data` are JSON strings, quotes included, written once."""

    kind: str
    bucket: str  # its size, as reports name it
    type: str  # of its bytes, such as image/jpeg
    nbytes: int
    url: msgspec.Raw
    data: msgspec.Raw
    shows: str | None = None  # what a drawing is


def medium_of(kind: str, bucket: str, media_type: str, content: bytes, shows: str | None = None) -> Medium:
    """A medium from its bytes."""
    text = pybase64.b64encode(content).decode("ascii")
    url, data = f'"data:{media_type};base64,{text}"', f'"{text}"'
    return Medium(kind, bucket, media_type, len(content), msgspec.Raw(url.encode()), msgspec.Raw(data.encode()), shows)


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


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One request, in no server's words."""

    index: int
    kind: str
    bucket: str
    prompt: str
    media: tuple[Medium, ...]
    max_tokens: int
    expect: str | None = None  # the right answer, where it is known
    cancel_after: float | None = None  # seconds after the sending; None: it is waited for

    def again(self, index: int) -> "SampleRequest":
        """The same media and a prompt of its own: the number stands in front of it."""
        return replace(self, index=index, prompt=self.prompt if self.expect is not None else f"{index} {self.prompt}")


def body_of(request: SampleRequest, options: Options, model: str | None) -> bytes:
    """The JSON body of a request."""
    said: dict[str, Any] = {"max_tokens": request.max_tokens}
    if options.temperature >= 0:
        said["temperature"] = options.temperature
    if options.ignore_eos:
        said |= {"ignore_eos": True, "min_tokens": request.max_tokens}
    said |= options.extra or {}
    stream = not options.no_stream
    if options.api == "native":
        inputs = [*({medium.kind: medium.url} for medium in request.media), {"text": request.prompt}]
        return msgspec.json.encode({"inputs": inputs, "parameters": said, "stream": stream})
    parts = [_openai_part(medium) for medium in request.media]
    content: Any = [*parts, {"type": "text", "text": request.prompt}] if parts else request.prompt
    body: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "stream": stream}
    if model is not None:
        body["model"] = model
    if stream and not options.no_usage:
        body["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(body | said)


def _openai_part(medium: Medium) -> dict[str, Any]:
    if medium.type in AUDIO_FORMATS:
        return {"type": "input_audio", "input_audio": {"data": medium.data, "format": AUDIO_FORMATS[medium.type]}}
    name = f"{medium.kind}_url"
    return {"type": name, name: {"url": medium.url}}
