"""Bodies: the same request in both forms, as the servers' own documentation has them."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from server.loadtest.options import read_options
from server.loadtest.traffic.requests import SampleRequest, body_of, medium_of, read_folder

PICTURE = medium_of("image", "8x8 png", "image/png", b"\x89PNG")
SOUND = medium_of("audio", "1 s", "audio/wav", b"RIFF")
FLAC = medium_of("audio", "x", "audio/flac", b"fLaC")
VIDEO = medium_of("video", "2 s", "video/mp4", b"ftyp")
URL = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
ASK = SampleRequest(1, "image", "8x8 png", "What is it?", (PICTURE,), 16)


def body(request: SampleRequest, *flags: str, model: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body_of(request, read_options(list(flags)), model))
    return found


def test_openais_form() -> None:
    assert body(ASK, model="m") == {
        "model": "m", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 16, "temperature": 0.0,
        "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": "What is it?"},
        ]}],
    }  # fmt: skip


def test_the_native_form() -> None:
    flags = ("--api", "native", "--ignore-eos", "--temperature", "-1", "--extra", '{"top_k": 3}')
    assert body(ASK, *flags, model="m") == {
        "inputs": [{"image": URL}, {"text": "What is it?"}], "stream": True,
        "parameters": {"max_tokens": 16, "ignore_eos": True, "min_tokens": 16, "top_k": 3},
    }  # fmt: skip


def test_a_text_alone_is_a_string_that_every_server_takes() -> None:
    assert body(SampleRequest(0, "text", "", "hello", (), 1))["messages"] == [{"role": "user", "content": "hello"}]


def test_sounds_and_videos() -> None:
    parts = body(SampleRequest(0, "audio", "", "x", (SOUND, FLAC, VIDEO), 1))["messages"][0]["content"]
    assert parts[0] == {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    assert parts[1] == {"type": "audio_url", "audio_url": {"url": "data:audio/flac;base64,ZkxhQw=="}}
    assert parts[2] == {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,ZnR5cA=="}}


def test_what_a_server_may_not_know_can_be_left_out() -> None:
    found = body(ASK, "--no-usage", "--temperature", "-1", "--no-stream", "--extra", '{"seed": 1}')
    assert set(found) == {"messages", "stream", "max_tokens", "seed"} and found["stream"] is False
    assert "stream_options" not in body(ASK, "--no-stream") and "stream_options" not in body(ASK, "--no-usage")


def test_a_request_that_comes_again_has_a_prompt_of_its_own() -> None:
    again = ASK.again(77)
    assert (again.index, again.media) == (77, ASK.media) and again.prompt != ASK.prompt
    known = SampleRequest(0, "demo", "", "What is it?", (PICTURE,), 4, expect="red circle")
    assert known.again(5).prompt == "What is it?", "another question would have another answer"


def test_a_folder_without_media_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no picture"):
        read_folder(tmp_path)
