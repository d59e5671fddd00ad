"""Sounds of 30 s with what a container adds are heard, as the published processor hears their first 30 s."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.registry import family_of
from tests.parity.theirs import transformers
from tests.samples.sounds import encode_sound, make_tone, make_wav
from tests.tables import entries
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_audio import extractor, write_qwen2_audio
from tokenization.chat.errors import ChatError
from tokenization.media.audio import PADDING_SECONDS, RATE, read_sound
from tokenization.media.source import Source
from tokenization.processor import Processor, StageClock

pytestmark = pytest.mark.network

LIMITS = MediaConfig()


def change(path: Path, **keys: Any) -> None:
    found = json.loads(path.read_text())
    found.update(keys)
    path.write_text(json.dumps(found))


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2-Audio with the published lengths: 30 s, 1500 positions."""
    path = write_qwen2_audio(tmp_path_factory.mktemp("listener"))
    change(path / "preprocessor_config.json", **extractor(30))
    audio = json.loads((path / "config.json").read_text())["audio_config"]
    change(path / "config.json", audio_config={**audio, "max_source_positions": 1500})
    return path


def host_of(path: Path) -> Processor:
    checkpoint = Checkpoint(path)
    return family_of(checkpoint).processor(checkpoint, LIMITS.max_pixels)


def wav(seconds: float, rate: int) -> bytes:
    return make_wav((make_tone(seconds, rate=rate) * 32767).astype(np.int16), rate=rate)


def sounds() -> Iterator[tuple[str, bytes]]:
    yield "wav of 30.013 s, 22,050 Hz", wav(30.013, 22050)
    yield "wav of 30.00006 s", make_wav((make_tone(31, rate=16000)[:480_001] * 32767).astype(np.int16))
    for rate in (16000, 44100, 8000):
        data = encode_sound(make_tone(30, rate=rate), rate=rate, codec="aac", container="adts")
        yield f"adts aac of 30 s, {rate} Hz", data
    for name, rate, codec, container in (
        ("m4a aac", 16000, "aac", "ipod"), ("mp3", 16000, "libmp3lame", "mp3"), ("opus", 48000, "libopus", "ogg"),
    ):  # fmt: skip
        yield f"{name} of 30 s", encode_sound(make_tone(30, rate=rate), rate=rate, codec=codec, container=container)


def test_they_are_heard_as_the_published_extractor_hears_their_first_30_s(listener: Path) -> None:
    host = host_of(listener)
    extract = transformers.WhisperFeatureExtractor.from_pretrained(str(listener))
    with entries() as entry:
        for name, data in sounds():
            with entry(name):
                check_heard(host, extract, data)


def check_heard(host: Processor, extract: Any, data: bytes) -> None:
    source = Source(kind="audio", param="inputs[0].audio", data=data)
    measure = host.measure(source, LIMITS)
    mel = host.load(source, measure, LIMITS, StageClock())
    samples = read_sound(data, LIMITS)
    assert len(samples) >= 30 * RATE - 1
    theirs = extract(samples, sampling_rate=RATE, return_attention_mask=True, return_tensors="np")
    frames = int(theirs["attention_mask"].sum())
    assert measure.grid == (1, 1, frames) == (1, 1, 3000)
    assert measure.n_tokens == ((frames - 1) // 2 + 1 - 2) // 2 + 1 == 750  # the published processor's own count
    # Two more frames of silence travel with a sound; the extractor has none after 30 s.
    assert np.abs(mel[:frames] - theirs["input_features"][0].T[: len(mel)]).max() < 2e-4


def test_more_than_padding_is_refused_with_the_tolerance(listener: Path) -> None:
    host = host_of(listener)
    most = 30 * RATE + int(PADDING_SECONDS * RATE)
    for n, heard in ((most, True), (most + 1, False)):
        source = Source(kind="audio", param="inputs[0].audio", data=make_wav(np.zeros(n, np.int16)))
        if heard:
            assert host.measure(source, LIMITS).grid == (1, 1, 3000)
            continue
        with pytest.raises(ChatError, match=r"at most 30 s at once.* 0\.25 s .*padding") as caught:
            host.measure(source, LIMITS)
        assert caught.value.param is None


def test_the_servers_own_bound_has_no_tolerance(listener: Path) -> None:
    source = Source(kind="audio", param="a", data=make_wav(np.zeros(20 * RATE + 1, np.int16)))
    with pytest.raises(ChatError, match="the allowed 20 s"):
        host_of(listener).measure(source, MediaConfig(max_audio_seconds=20))


def test_the_same_of_omni_at_40_s(tmp_path: Path) -> None:
    """Its length is what its file says: 300 s as published."""
    path = write_qwen2_5_omni(tmp_path)
    change(path / "preprocessor_config.json", **extractor(40))
    host = host_of(path)
    data = encode_sound(make_tone(40, rate=16000), rate=16000, codec="aac", container="adts")
    assert len(read_sound(data, LIMITS)) > 40 * RATE
    measure = host.measure(Source(kind="audio", param="a", data=data), LIMITS)
    assert (measure.grid, measure.n_tokens) == ((1, 1, 4000), 1000)
    long = make_wav(np.zeros(40 * RATE + int(PADDING_SECONDS * RATE) + 1, np.int16))
    with pytest.raises(ChatError, match="at most 40 s at once"):
        host.measure(Source(kind="audio", param="a", data=long), LIMITS)
