"""One request as data, and its body in the two forms that servers take: OpenAI's messages and native lists."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pybase64

APIS = {"openai": "/v1/chat/completions", "native": "/chat"}
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


def medium_of(kind: str, bucket: str, media_type: str, content: bytes) -> Medium:
    """A medium from its bytes."""
    text = pybase64.b64encode(content).decode("ascii")
    url, data = f'"data:{media_type};base64,{text}"', f'"{text}"'
    return Medium(kind, bucket, media_type, len(content), msgspec.Raw(url.encode()), msgspec.Raw(data.encode()))


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, in no server's words."""

    index: int
    kind: str
    bucket: str
    prompt: str
    media: tuple[Medium, ...]
    max_tokens: int
    expect: str | None = None  # the right answer, where it is known
    cancel_after: float | None = None  # seconds after the sending; None: it is waited for

    def again(self, index: int) -> "Ask":
        """The same media and a prompt of its own: the number stands in front of it."""
        return replace(self, index=index, prompt=self.prompt if self.expect is not None else f"{index} {self.prompt}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How bodies are written for one target."""

    api: str = "openai"
    model: str | None = None
    temperature: float | None = 0.0
    ignore_eos: bool = False  # answers are exactly max_tokens long
    stream: bool = True
    usage: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, ask: Ask) -> bytes:
        """The JSON body of a request."""
        return msgspec.json.encode(self._openai(ask) if self.api == "openai" else self._native(ask))

    def _sampling(self, ask: Ask) -> dict[str, Any]:
        said: dict[str, Any] = {"max_tokens": ask.max_tokens}
        if self.temperature is not None:
            said["temperature"] = self.temperature
        if self.ignore_eos:
            said |= {"ignore_eos": True, "min_tokens": ask.max_tokens}
        return said

    def _openai(self, ask: Ask) -> dict[str, Any]:
        parts = [_openai_part(medium) for medium in ask.media]
        content: Any = [*parts, {"type": "text", "text": ask.prompt}] if parts else ask.prompt
        body: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "stream": self.stream}
        if self.model is not None:
            body["model"] = self.model
        if self.stream and self.usage:
            body["stream_options"] = {"include_usage": True}
        return {**body, **self._sampling(ask), **self.extra}

    def _native(self, ask: Ask) -> dict[str, Any]:
        inputs = [*({medium.kind: medium.url} for medium in ask.media), {"text": ask.prompt}]
        return {"inputs": inputs, "parameters": {**self._sampling(ask), **self.extra}, "stream": self.stream}


def _openai_part(medium: Medium) -> dict[str, Any]:
    if medium.type in AUDIO_FORMATS:
        return {"type": "input_audio", "input_audio": {"data": medium.data, "format": AUDIO_FORMATS[medium.type]}}
    name = f"{medium.kind}_url"
    return {"type": name, name: {"url": medium.url}}
