"""How a model that only hears reads a chat: runs of pads, plain positions, and which sounds it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from av.audio.frame import AudioFrame

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import MediaConfig
from model.families.qwen2.audio_features import audio_tokens
from model.families.qwen2.qwen2_audio import Qwen2AudioProcessor
from tests.samples.sounds import encode_sound, make_tone, make_wav
from tests.samples.soundtracks import tone
from tests.tables import each_of
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tiny.qwen2_vl import write_json
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.media import audio
from tokenization.media.source import Source
from tokenization.processor import Measure, StageClock

pytestmark = pytest.mark.network

LIMITS = MediaConfig()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_audio(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def processor(path: Path) -> Qwen2AudioProcessor:
    return Qwen2AudioProcessor(Checkpoint(path), 1 << 20)


def source(n: int, seed: int = 0) -> Source:
    return Source(kind="audio", param="inputs[0].audio", data=make_wav(tone(n, seed)))


def changed(path: Path, target: Path, name: str, **values: Any) -> Checkpoint:
    """A copy of the checkpoint's small files, one of them with other values."""
    for file in path.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    write_json(target / name, {**json.loads((target / name).read_text()), **values})
    return Checkpoint(target)


@each_of(("frames", "tokens"), [(0, 0), (1, 0), (2, 0), (3, 1), (6, 1), (7, 2), (196, 49), (300, 75), (3000, 750)])
def test_tokens_of_frames(frames: int, tokens: int) -> None:
    assert audio_tokens(frames) == tokens


def test_sounds_in_a_chat(processor: Qwen2AudioProcessor) -> None:
    ids = processor.render(chat_from_native([{"audio": "a"}, {"text": "and"}, {"audio": "b"}, {"text": "what?"}]))
    pad = processor.tokenizer.special["<|AUDIO|>"]
    assert ids.count(pad) == 2 and "Audio 2: " in "".join(
        processor.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids
    )
    measures = [processor.measure(source(n), LIMITS) for n in (16000, 1500)]
    assert [(m.n_tokens, m.grid, m.shape) for m in measures] == [
        (25, (1, 1, 100), (102, 16)),
        (2, (1, 1, 10), (12, 16)),
    ]
    layout = processor.expand(ids, measures)
    at = ids.index(pad)
    assert layout.spans[0] == ((at, 25),) and layout.spans[1][0][1] == 2
    assert len(layout.input_ids) == len(ids) + 24 + 1 and (layout.input_ids == pad).sum() == 27
    positions, delta = processor.positions(layout, measures)
    assert delta == 0 and positions.dtype == np.int32
    assert np.array_equal(positions, np.tile(np.arange(len(layout.input_ids)), (3, 1)))


def test_openai_and_native_read_alike(processor: Qwen2AudioProcessor) -> None:
    native = chat_from_native([{"audio": "a"}, {"text": "what?"}])
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "flac"}}
    openai = chat_from_openai([{"role": "user", "content": [audio, {"type": "text", "text": "what?"}]}])
    assert processor.render(native) == processor.render(openai)


def test_frames_are_floats_with_the_announced_shape(processor: Qwen2AudioProcessor) -> None:
    given = source(12345)
    measure = processor.measure(given, LIMITS)
    mel = processor.load(given, measure, LIMITS, StageClock())
    assert mel.dtype == np.float32 == np.dtype(measure.dtype) and mel.shape == measure.shape == (78 + 2, 16)
    assert mel.nbytes == measure.nbytes and mel.std() > 0.05


def test_a_sound_that_is_too_long_is_refused_and_only_padding_is_cut(processor: Qwen2AudioProcessor) -> None:
    most = 48000 + int(audio.PADDING_SECONDS * audio.RATE)
    assert processor.measure(source(48000), LIMITS) == processor.measure(source(most), LIMITS)
    assert processor.measure(source(most), LIMITS).n_tokens == 75
    with pytest.raises(ChatError, match="the sound is too long: this model hears at most 3 s at once") as caught:
        processor.measure(source(most + 1), LIMITS)
    assert caught.value.param is None
    with pytest.raises(ChatError, match="more than the allowed 1 s"):
        processor.measure(source(32000), MediaConfig(max_audio_seconds=1))


@each_of("container", ["adts", "mp4"])  # which does not tell its length, and which does
def test_no_more_is_decoded_than_the_model_hears(
    processor: Qwen2AudioProcessor, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    to_mono = audio._to_mono

    def counted(frame: AudioFrame) -> np.ndarray:
        decoded.append(frame.samples)
        return to_mono(frame)

    monkeypatch.setattr(audio, "_to_mono", counted)
    data = encode_sound(make_tone(20, rate=16000), rate=16000, codec="aac", container=container)
    with pytest.raises(ChatError, match=r"this model hears at most 3 s at once.* cut off: \d\d s, as its file says$"):
        processor.measure(Source(kind="audio", param="w", data=data), LIMITS)
    assert sum(decoded) == 0 if container == "mp4" else 3.1 * 16000 < sum(decoded) <= 3.25 * 16000


def test_rates_that_change_are_rounded_to_the_model_s_length(
    processor: Qwen2AudioProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part is rounded up to a whole sample: what that adds is cut off, and is no reason to refuse."""
    read = "tokenization.media.audio.read_sound"
    monkeypatch.setattr(read, lambda *_, **__: np.zeros(48002, np.float32))
    assert processor.measure(source(1), LIMITS).grid == (1, 1, 300)


def test_what_is_no_sound_is_named(processor: Qwen2AudioProcessor) -> None:
    with pytest.raises(ChatError) as caught:
        processor.measure(Source(kind="audio", param="inputs[3].audio", data=b"no sound"), LIMITS)
    assert caught.value.param is None and "use_audio" not in caught.value.message


@each_of(
    ("limits", "max_tokens", "frames"),
    [({}, 1000, 300), ({"max_audio_seconds": 1.5}, 1000, 150), ({}, 10, 42), ({}, 2, 10)],
)
def test_the_largest_sound(
    processor: Qwen2AudioProcessor, limits: dict[str, Any], max_tokens: int, frames: int
) -> None:
    (found,) = processor.largest(MediaConfig(**limits), max_tokens)
    assert isinstance(found, Measure) and found.grid == (1, 1, frames) and found.n_tokens <= max_tokens
    assert audio_tokens(frames + 1) > max_tokens or frames in (300, 150)


def test_no_sound_fits_into_one_token(processor: Qwen2AudioProcessor) -> None:
    assert processor.largest(LIMITS, 1) == ()


@each_of(
    ("key", "value"),
    [("hop_length", 100), ("n_fft", 512), ("sampling_rate", 8000), ("feature_size", 80), ("dither", 0.1),
     ("chunk_length", 0)],
copied=('path',))  # fmt: skip
def test_another_extractor_is_refused(path: Path, tmp_path: Path, key: str, value: float) -> None:
    checkpoint = changed(path, tmp_path, "preprocessor_config.json", **{key: value})
    with pytest.raises(CheckpointError, match="feature_size|num_mel_bins" if key == "feature_size" else key):
        Qwen2AudioProcessor(checkpoint, 1 << 20)


def test_the_encoder_s_own_length_holds_too(path: Path, tmp_path: Path) -> None:
    checkpoint = changed(path, tmp_path, "preprocessor_config.json", chunk_length=30)
    with pytest.raises(ChatError, match="at most 3 s"):
        Qwen2AudioProcessor(checkpoint, 1 << 20).measure(source(53000), LIMITS)


@each_of("token", ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"])
def test_typed_marks_are_text(processor: Qwen2AudioProcessor, token: str) -> None:
    def special(word: str) -> list[int]:
        ids = processor.render(chat_from_native([{"text": word}, {"audio": "a"}, {"text": word}]))
        return [i for i in ids if processor.tokenizer.is_special(i)]

    assert special(token) == special("word")
