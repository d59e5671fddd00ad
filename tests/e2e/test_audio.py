"""Sounds, and all four kinds of input together, through a running server: what is answered, and that it is right."""

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.audio_chats import (
    ALL,
    GREEDY,
    IMAGE,
    QUESTION,
    SECONDS,
    SILENT,
    SOUND,
    TALKIE,
    WAV,
    answer_of,
    completion,
    native,
    sound_url,
    text_of,
    tokens,
)
from tests.e2e.running import RunningServer, uncached
from tests.samples.sounds import encode_sound, make_tone, make_wav
from tests.samples.soundtracks import tone

pytestmark = pytest.mark.process


def test_one_sound_reads_alike_however_it_is_sent(omni: RunningServer, sounds: Path) -> None:
    plain = native(omni, SOUND)
    assert tokens(plain) == {"image_tokens": 0, "audio_tokens": 25} and plain["text"]
    assert native(omni, {"audio": str(sounds / "tone.wav")})["text"] == plain["text"]
    encoded = SOUND["audio"].partition(",")[2]
    for part in (
        {"type": "audio_url", "audio_url": {"url": SOUND["audio"]}},
        {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": encoded, "format": "mp3"}},  # the file's header decides
    ):
        body = completion(omni, part)
        assert text_of(body) == plain["text"] and uncached(body["usage"]) == uncached(plain["usage"])


FORMATS: dict[str, dict[str, Any]] = {
    "wav": {},
    "mp3": {"codec": "libmp3lame", "container": "mp3"},
    "flac": {"codec": "flac", "container": "flac", "channels": 2},
    "ogg": {"codec": "libopus", "container": "ogg", "rate": 48000},
    "m4a": {"codec": "aac", "container": "ipod", "channels": 2},
}


@pytest.mark.parametrize("kind", FORMATS)
def test_formats_rates_and_channels(omni: RunningServer, kind: str) -> None:
    """Two seconds at 44.1 or 48 kHz are about fifty tokens; codecs add a little silence."""
    options = {"rate": 44100, **FORMATS[kind]}
    content = encode_sound(make_tone(2, rate=options["rate"]), **options)
    body = native(omni, {"audio": sound_url(content, kind)})
    assert 49 <= tokens(body)["audio_tokens"] <= 53


def test_the_answer_depends_on_the_sound(omni: RunningServer) -> None:
    def top(samples: Any) -> float:
        asked = {**GREEDY, "logprobs": True, "max_tokens": 1}
        body = {"inputs": [{"audio": sound_url(make_wav(samples))}, QUESTION], "parameters": asked}
        found: float = answer_of(omni.http.post("/chat", json=body))["logprobs"]["content"][0]["logprob"]
        return found

    assert top(tone(16000, 1)) == pytest.approx(top(tone(16000, 1)), abs=1e-5)
    assert abs(top(tone(16000, 1)) - top(tone(16000, 2))) > 1e-3


def test_the_openai_sdk_sends_a_sound(omni: RunningServer) -> None:
    content: Any = [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}},
        {"type": "text", **QUESTION},
    ]
    with openai.OpenAI(base_url=f"{omni.url}/v1", api_key="none", max_retries=0) as client:
        body = client.chat.completions.create(
            model="tiny-omni", messages=[{"role": "user", "content": content}], max_completion_tokens=8,
            temperature=0, extra_body={"ignore_eos": True},
        )  # fmt: skip
    assert body.choices[0].message.content == native(omni, SOUND)["text"]
    assert body.usage is not None and body.usage.prompt_tokens_details is not None
    assert body.usage.prompt_tokens_details.audio_tokens == 25


def test_a_video_is_heard_only_where_that_is_asked_for(omni: RunningServer) -> None:
    silent = native(omni, {**TALKIE, "use_audio_in_video": False})
    heard = native(omni, TALKIE)
    assert tokens(heard) == {**tokens(silent), "audio_tokens": 94}  # 3.75 s
    assert heard["usage"]["prompt_tokens"] == silent["usage"]["prompt_tokens"] + 94 + 2
    url = {"url": TALKIE["video"], **{key: value for key, value in TALKIE.items() if key != "video"}}
    assert text_of(completion(omni, {"type": "video_url", "video_url": url})) == heard["text"]


def test_all_four_keys_in_one_request_in_any_order(omni: RunningServer) -> None:
    answers = []
    for shift in range(len(ALL)):
        parts = [part for one in ALL[shift:] + ALL[:shift] for part in (one, {"text": "and"})]
        body = native(omni, *parts)
        counts = tokens(body)
        assert counts["audio_tokens"] == 25 + 94 and counts["image_tokens"] == 12 and counts["video_tokens"] > 8
        answers.append(body["text"])
    assert native(omni, *(part for one in ALL for part in (one, {"text": "and"})))["text"] == answers[0]


def test_counting_says_what_sounds_cost(omni: RunningServer) -> None:
    counted = answer_of(omni.http.post("/tokenize", json={"inputs": [*ALL, QUESTION]}))
    assert [medium["kind"] for medium in counted["media"]] == ["image", "audio", "video", "video", "audio"]
    assert [medium["tokens"] for medium in counted["media"]][::4] == [12, 94]
    assert counted["count"] == native(omni, *ALL)["usage"]["prompt_tokens"]
    assert omni.metric('shm_bytes{state="leased"}') == 0


def test_mixed_requests_at_once_are_answered_as_alone(omni: RunningServer) -> None:
    chats: list[list[dict[str, Any]]] = [
        [{"text": "Hello"}], [SOUND], [IMAGE], [TALKIE], [SILENT, SOUND], [TALKIE, IMAGE], [SOUND, SOUND], ALL,
        [{"audio": sound_url(make_wav(tone(48000, 3)))}], [{"audio": sound_url(make_wav(tone(2000, 4)))}, IMAGE],
    ]  # fmt: skip
    alone = [native(omni, *chat)["text"] for chat in chats]
    with ThreadPoolExecutor(len(chats)) as pool:
        together = list(pool.map(lambda chat: native(omni, *chat)["text"], chats))
    assert together == alone


def test_what_the_server_says_of_itself(omni: RunningServer) -> None:
    model = omni.http.get("/v1/models").json()["data"][0]
    assert model["architecture"] == {"family": "qwen2_5_omni", "input_modalities": ["text", "audio", "image", "video"]}
    assert f"--max-audio-seconds    {SECONDS} s of one sound" in omni.out
    stages = omni.http.get("/metrics").text
    assert 'mm_preprocess_seconds_count{modality="audio",stage="mel"}' in stages


def test_the_sound_of_every_video_may_be_asked_for_at_once(omni: RunningServer) -> None:
    def part(**options: Any) -> dict[str, Any]:
        url = {"url": TALKIE["video"], **{key: TALKIE[key] for key in ("min_pixels", "max_pixels")}, **options}
        return {"type": "video_url", "video_url": url}

    asked = {"mm_processor_kwargs": {"use_audio_in_video": True}}
    heard = completion(omni, part(use_audio_in_video=True))
    assert heard["usage"]["prompt_tokens_details"]["audio_tokens"]
    for found in (completion(omni, part(), **asked), completion(omni, part(use_audio_in_video=None), **asked)):
        assert (uncached(found["usage"]), text_of(found)) == (uncached(heard["usage"]), text_of(heard))
    assert (
        "audio_tokens"
        not in completion(omni, part(use_audio_in_video=False), **asked)["usage"]["prompt_tokens_details"]
    )
