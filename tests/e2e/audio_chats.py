"""What tests of sounds through a running server share: media small enough for it, and what they ask of answers."""

import base64
from typing import Any

import httpx

from tests.e2e.running import RunningServer, data_url, picture
from tests.samples.sounds import make_wav
from tests.samples.soundtracks import film, tone

GREEDY: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
QUESTION = {"text": "what is in it?"}
SECONDS = 20  # of the longest sound that the server takes


def sound_url(content: bytes, kind: str = "wav") -> str:
    return f"data:audio/{kind};base64,{base64.b64encode(content).decode()}"


def film_url(content: bytes) -> str:
    return data_url(content).replace("image/png", "video/x-matroska", 1)


WAV = make_wav(tone(16000, 1))
SOUND = {"audio": sound_url(WAV)}
IMAGE = {"image": data_url(picture(120, 90))}
FEW = {"min_pixels": 3136, "max_pixels": 3136 * 4}
SILENT = {"video": film_url(film(3, sound=None)), **FEW}
TALKIE = {"video": film_url(film(4, sound=60000)), "use_audio_in_video": True, **FEW}
ALL: list[dict[str, Any]] = [IMAGE, SOUND, SILENT, TALKIE]


def answer_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def native(server: RunningServer, *parts: dict[str, Any]) -> dict[str, Any]:
    return answer_of(server.http.post("/chat", json={"inputs": [*parts, QUESTION], "parameters": GREEDY}))


def completion(server: RunningServer, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    content = [*parts, {"type": "text", **QUESTION}]
    body = {"messages": [{"role": "user", "content": content}], **GREEDY, **fields}
    return answer_of(server.http.post("/v1/chat/completions", json=body))


def text_of(body: dict[str, Any]) -> str:
    text: str = body["choices"][0]["message"]["content"]
    return text


def tokens(body: dict[str, Any]) -> dict[str, int]:
    """Those of each kind of medium."""
    found: dict[str, int] = body["usage"]["prompt_tokens_details"]
    return {name: n for name, n in found.items() if name != "cached_tokens"}


def refused(answer: httpx.Response, param: str, words: str = "", code: str | None = None) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code), answer.text
    assert words in error["message"], error["message"]
