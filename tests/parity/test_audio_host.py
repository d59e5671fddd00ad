"""Ids, features and positions of the models that hear, against transformers' own processors and rope index."""

import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.registry import family_of
from tests.parity.omni_reference import (
    Part,
    audio,
    flat,
    image,
    load_processor,
    load_thinker,
    messages_of,
    talkie,
    their_ids,
    their_positions,
    video,
)  # fmt: skip
from tests.parity.theirs import transformers
from tests.samples.pictures import encoded, photo
from tests.samples.sounds import make_wav
from tests.samples.soundtracks import film, tone
from tests.tables import entries
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_audio import TEMPLATE as SOUND_TEMPLATE
from tests.tiny.qwen2_audio import write_qwen2_audio
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.chat.options import MediaOptions
from tokenization.media.mel import CONTEXT_FRAMES
from tokenization.media.source import Source, tracks
from tokenization.placeholders import Layout
from tokenization.processor import Measure, Processor, StageClock

pytestmark = pytest.mark.network

LIMITS = MediaConfig()
MEL_BAR = 2e-4  # float64 against the extractor's own arithmetic


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_audio(tmp_path_factory.mktemp("listener"))


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_5_omni(tmp_path_factory.mktemp("omni"))


def host_of(path: Path) -> Processor:
    checkpoint = Checkpoint(path)
    return family_of(checkpoint).processor(checkpoint, LIMITS.max_pixels)


def sound(samples: np.ndarray) -> Source:
    return Source(kind="audio", param="", data=make_wav(samples))


def loaded(host: Processor, source: Source) -> tuple[Measure, np.ndarray]:
    measure = host.measure(source, LIMITS)
    return measure, host.load(source, measure, LIMITS, StageClock())


def as_float(samples: np.ndarray) -> np.ndarray:
    return (samples / 32768).astype(np.float32)


# ---- Qwen2-Audio


CHATS: list[list[Any]] = [  # numbers: seconds of sound
    ["only words"],
    [1.0, "what is this?"],
    ["before", 0.07, "after"],
    [0.5, 0.51, "two in a row", 3.0],
    [2.0],
]


@pytest.mark.parametrize("parts", CHATS, ids=str)
def test_whole_prompts_of_qwen2_audio(listener: Path, parts: list[Any]) -> None:
    host = host_of(listener)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(listener))
    processor = transformers.Qwen2AudioProcessor(
        transformers.WhisperFeatureExtractor.from_pretrained(str(listener)), tokenizer, SOUND_TEMPLATE
    )
    sounds = [tone(round(part * 16000), i) for i, part in enumerate(parts) if isinstance(part, float)]
    content: list[Any] = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "audio", "audio_url": ""}
        for part in parts
    ]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    given = {"audio": [as_float(samples) for samples in sounds], "sampling_rate": 16000} if sounds else {}
    theirs = processor(text=text, **given)
    chat = chat_from_native([{"text": part} if isinstance(part, str) else {"audio": "x"} for part in parts])
    found = [loaded(host, sound(samples)) for samples in sounds]
    measures = [measure for measure, _ in found]
    layout = host.expand(host.render(chat), measures)
    assert layout.input_ids.tolist() == np.asarray(theirs["input_ids"]).reshape(-1).tolist()
    for i, (measure, mel) in enumerate(found):
        frames = int(np.asarray(theirs["feature_attention_mask"][i]).sum())
        assert measure.grid == (1, 1, frames)
        features = np.asarray(theirs["input_features"][i]).T  # [padded frames, mels]
        seen = features[: frames + CONTEXT_FRAMES]
        assert np.abs(mel[: len(seen)] - seen).max() < MEL_BAR
    positions, delta = host.positions(layout, measures)
    assert np.array_equal(positions, np.tile(np.arange(len(layout.input_ids)), (3, 1))) and delta == 0


def test_histories_of_qwen2_audio(listener: Path) -> None:
    host = host_of(listener)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(listener))
    audio = {"type": "audio_url", "audio_url": "x"}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Listen."},
        {"role": "user", "content": [audio, {"type": "text", "text": "what?"}]},
        {"role": "assistant", "content": "a dog"},
        {"role": "user", "content": [{"type": "text", "text": "and "}, audio, audio]},
    ]
    theirs = tokenizer.apply_chat_template(
        messages, chat_template=SOUND_TEMPLATE, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert host.render(chat_from_openai(messages)) == list(theirs)


# ---- Qwen2.5-Omni: ids and positions of any media


@pytest.fixture(scope="module")
def processor(omni: Path) -> Any:
    return load_processor(omni)


@pytest.fixture(scope="module")
def thinker(omni: Path) -> Any:
    return load_thinker(omni)


def check(host: Processor, processor: Any, thinker: Any, parts: Sequence[Part]) -> Layout:
    measures = flat(parts)
    messages = messages_of(parts)
    for part in messages[0]["content"]:
        if part["type"] != "text":
            part["type"] += "_url"
            part[part["type"]] = "x"
    layout = host.expand(host.render(chat_from_openai(messages)), measures)
    assert layout.input_ids.tolist() == their_ids(processor, parts)
    positions, delta = host.positions(layout, measures)
    theirs, their_delta = their_positions(thinker, layout.input_ids, measures)
    assert positions.dtype == np.int32 and np.array_equal(positions, theirs) and delta == their_delta
    for spans, measure in zip(layout.spans, measures, strict=True):
        pad = host.tokenizer.special[f"<|{measure.kind.upper()}|>"]
        assert sum(length for _, length in spans) == measure.n_tokens
        assert all((layout.input_ids[start : start + length] == pad).all() for start, length in spans)
    return layout


SILENT: dict[str, list[Part]] = {
    "text": ["only words"],
    "audio": [[audio(100)], "what?"],
    "audios": ["a", [audio(8)], [audio(1000)], "b", [audio(299)]],
    "image": ["look", [image(4, 6)], "what?"],
    "images": [[image(4, 6)], [image(2, 80)], "x", [image(10, 4)]],
    "video": [[video(5, 4, 6)], "what?"],
    "videos": [[video(2, 4, 4, 0.5)], "x", [video(7, 20, 4, 1 / 3)], [video(3, 4, 4, 3.0)]],
    "long video": [[video(25, 4, 4, 2 / 0.9)], "x"],
    "still video": [[video(1, 40, 60)], "x"],
    "image audio video": [[image(4, 6)], "x", [audio(333)], [video(4, 4, 4)], "y"],
    "video audio image": ["x", [video(4, 8, 4, 0.7)], [audio(50)], "y", [image(20, 20)]],
    "audio image audio video": [[audio(70)], [image(4, 4)], [audio(71)], "x", [video(3, 4, 4)], [video(2, 2, 4)]],
}
HEARD: dict[str, list[Part]] = {
    "video": ["look", talkie(5, 4, 6, 1000), "what?"],
    "sound ends first": [talkie(9, 4, 6, 150), "x"],
    "sound ends last": [talkie(2, 4, 6, 3000), "x"],
    "short": [talkie(1, 4, 4, 8)],
    "wide": [talkie(1, 4, 160, 20), "behind"],
    "sparse": [talkie(6, 4, 4, 2400, 4.0), "x"],
    "very sparse": [talkie(3, 4, 4, 900, 11.3), "x"],
    "dense": [talkie(40, 4, 4, 900, 1 / 7), "x"],
    "two": [talkie(3, 4, 4, 300), "x", talkie(4, 4, 6, 100, 0.5)],
    "adjacent": [talkie(3, 4, 4, 300), talkie(4, 4, 6, 100, 0.5)],
    "audio first": [[audio(100)], talkie(3, 4, 4, 300), "x"],
    "audio last": [talkie(3, 4, 4, 300), "x", [audio(55)]],
    "all": [[image(4, 8)], talkie(6, 4, 4, 700), "x", [audio(8)], [image(2, 4)], talkie(2, 4, 4, 90), "y"],
}


def test_media_of_omni(omni: Path, processor: Any, thinker: Any) -> None:
    with entries() as entry:
        for name, parts in SILENT.items():
            with entry(name):
                layout = check(host_of(omni), processor, thinker, parts)
                assert all(len(spans) == 1 for spans in layout.spans)


def test_videos_with_sound_of_omni(omni: Path, processor: Any, thinker: Any) -> None:
    with entries() as entry:
        for name, parts in HEARD.items():
            with entry(name):
                check(host_of(omni), processor, thinker, parts)


def test_random_chats_of_omni(omni: Path, processor: Any, thinker: Any) -> None:
    rng, host = random.Random(5), host_of(omni)
    for i in range(60):
        parts: list[Part] = []
        for _ in range(rng.randrange(1, 6)):
            kind = rng.choice(["text", "image", "audio", "video"])
            h, w = 2 * rng.randrange(1, 8), 2 * rng.randrange(2, 8)
            t, seconds = rng.randrange(1, 12), rng.choice([1.0, 0.5, 2.0, 1 / 3, 0.7, 2 / 3])
            if kind == "video" and i % 2:
                parts.append(talkie(t, h, w, rng.randrange(8, 1500), seconds))
            else:
                made: dict[str, Part] = {
                    "text": rng.choice(["x", "some words", "\n"]), "image": [image(h, w)],
                    "audio": [audio(rng.randrange(8, 1500))], "video": [video(t, h, w, seconds)],
                }  # fmt: skip
                parts.append(made[kind])
        check(host, processor, thinker, parts)


def test_silent_and_heard_videos_in_one_chat(omni: Path) -> None:
    """The reference has one switch for a whole chat; here each video keeps the layout that it has alone."""
    host = host_of(omni)
    parts: list[Part] = [talkie(3, 4, 4, 300), "x", [video(2, 4, 4)], "y"]
    measures = flat(parts)
    messages = [{"role": "user", "content": [{"type": "video_url", "video_url": "x"}] * 2}]
    layout = host.expand(host.render(chat_from_openai(messages)), measures)
    assert [len(spans) for spans in layout.spans] == [2, 2, 1]
    positions, delta = host.positions(layout, measures)
    ((start, length),) = layout.spans[2]
    block = positions[:, start : start + length]
    assert block.min() == positions[0, start - 1] + 1 and block[0].max() - block[0].min() == 25
    assert delta == positions.max() + 1 - len(layout.input_ids)


# ---- Qwen2.5-Omni: what the files of media become


def test_features_of_omni(omni: Path) -> None:
    host = host_of(omni)
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(str(omni))
    for n in (1200, 16001):
        measure, mel = loaded(host, sound(tone(n)))
        theirs = extractor(
            as_float(tone(n)),
            sampling_rate=16000,
            padding="max_length",
            return_attention_mask=True,
            return_tensors="np",
        )
        frames = int(theirs["attention_mask"].sum())
        assert measure.grid == (1, 1, frames) and mel.shape == (frames, 16)
        assert np.abs(mel - theirs["input_features"][0].T[:frames]).max() < MEL_BAR


def test_pictures_of_omni(omni: Path) -> None:
    data = encoded(photo(200, 90), "PNG")
    _, pixels = loaded(host_of(omni), Source(kind="image", param="", data=data))
    processor = transformers.Qwen2VLImageProcessorPil(
        size={"shortest_edge": 3136, "longest_edge": LIMITS.max_pixels}, do_rescale=False, do_normalize=False
    )
    theirs = processor(images=[Image.open(io.BytesIO(data)).convert("RGB")], return_tensors="np")
    assert np.array_equal(pixels, theirs["pixel_values"].reshape(-1, 3, 2, 196)[:, :, 0].reshape(-1, 588))


def test_a_film_of_omni(omni: Path, processor: Any, thinker: Any) -> None:
    """From the bytes of a file to ids and positions; its sound is the sound that was put in."""
    host = host_of(omni)
    source = Source(
        kind="video", param="", data=film(5, sound=70000), options=MediaOptions(use_audio=True, max_pixels=3136)
    )
    found = [loaded(host, track) for track in tracks(source)]
    measures = [measure for measure, _ in found]
    check(host, processor, thinker, ["see", measures, "and hear"])
    assert measures[0].video is not None and measures[0].video.seconds_per_grid == 1.0
    sound_alone, mel = loaded(host, sound(tone(70000)))
    assert sound_alone.n_tokens == measures[1].n_tokens and np.array_equal(mel, found[1][1])
