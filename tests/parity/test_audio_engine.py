"""Greedy tokens of mixed batches with sounds against transformers' generate, for both families that hear."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from model.engine.messages import Generate
from tests.model.engine.engine_harness import EngineHarness, clip, engine_at, engine_harness_at, picture
from tests.parity.engine_check import (
    MARGIN,
    SAMPLING,
    N,
    Parts,
    Reference,
    Setup,
    as_reference,
    explicit,
    generated,
    n_media,
    never_sampled,
    pixels_of,
    prepared_one_by_one,
    submit_all,
)
from tests.parity.harness import load_hf, load_ours
from tests.parity.theirs import transformers
from tests.samples.sounds import make_wav
from tests.samples.soundtracks import film, tone
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tokenization.worker_harness import url
from tokenization.chat.parts import Media

pytestmark = pytest.mark.network

WRITERS: dict[str, Callable[..., Path]] = {"qwen2_audio": write_qwen2_audio, "qwen2_5_omni": write_qwen2_5_omni}


@dataclass(frozen=True)
class Heard:
    """A medium, and what can be heard in it: int16 [n] at 16 kHz."""

    media: Media
    samples: np.ndarray


Written = Sequence[str | Image.Image | Media | Heard]


def sound(n: int, seed: int) -> Heard:
    """`n` samples as a client would send them."""
    samples = tone(n, seed)
    return Heard(Media(kind="audio", source=url(make_wav(samples)), param=""), samples)


def silent(seconds: float, **options: Any) -> Media:
    """A clip of 56 x 84 pixels, which become 2 x 3 or fewer tokens."""
    return clip(film(seconds, sound=None), min_pixels=3136, **options)


def talkie(seconds: float, n: int, **options: Any) -> Heard:
    """A clip that is also listened to; its sound may be shorter or longer than what is seen."""
    return Heard(clip(film(seconds, sound=n), min_pixels=3136, use_audio=True, **options), tone(n))


PICTURE, OTHER = picture(90, 60, 5), picture(60, 130, 6)
HEARD: dict[str, Written] = {
    "text": ["Hello, world! What is a quick brown fox?"],
    "audio": [sound(16000, 1), "what is this?"],
    "short": ["the ", sound(1200, 2)],
    "audios": ["a", sound(4960, 3), "b", sound(32321, 4), "c", sound(8001, 5), "what is it?"],
    "adjacent": [sound(5000, 6), sound(9000, 7), "answers"],
    "twelve": [part for i in range(12) for part in (f"{i + 1}", sound(1600 + 150 * i, 10 + i))] + ["one two three"],
    "longest": [sound(48000, 8), "what is in it?"],
}
SEEN: dict[str, Written] = {
    "image": [PICTURE, "what is in this image?"],
    "video": ["the ", silent(4, fps=2), "what is in it?"],
    "talkie": ["the ", talkie(5, 80000), "what is in it?"],
    "outlasted": [talkie(2, 72000, fps=4), "what is it?"],  # its sound goes on
    "hushed": [talkie(5, 20000), "what is it?"],  # its sound ends first
    "image_audio_video": [PICTURE, "and", sound(9000, 20), silent(3), "answers"],
    "video_image_audio": [silent(3), OTHER, "and", sound(9000, 21), "answers"],
    "audio_video_image": [sound(9000, 22), silent(3), "and", PICTURE, "answers"],
    "audio_talkie_image": [sound(7000, 23), talkie(4, 50000), "and", PICTURE, "answers"],
    "image_talkie_audio": [PICTURE, "and", talkie(3, 60000, fps=3), sound(7000, 24), "answers"],
    "talkies": [talkie(3, 50000), "and", talkie(2, 20000), OTHER, sound(3000, 25), "answers"],
    "both": [talkie(3, 40000), "heard, and not:", silent(3), "answers"],
}
MEMBERS: dict[str, dict[str, Written]] = {"qwen2_audio": HEARD, "qwen2_5_omni": {**HEARD, **SEEN}}
RATE = 16000
PADDED_SECONDS = 10  # no sound here is longer
EXPLICIT = {"both"}  # transformers knows one switch for a whole chat


def plain(parts: Written) -> Parts:
    """What is sent."""
    return [part.media if isinstance(part, Heard) else part for part in parts]


def sounds_of(path: Path, parts: Written) -> dict[str, torch.Tensor]:
    """Log-mel frames and their mask by transformers' own extractor.

    Padded as the checkpoint says, but not to Omni's five minutes: they are masked, and would take most of the time.
    test_features_of_omni pads to all of them. An encoder of whole sounds takes nothing but its own length.
    """
    samples = [(part.samples / 32768).astype(np.float32) for part in parts if isinstance(part, Heard)]
    if not samples:
        return {}
    extract = transformers.WhisperFeatureExtractor.from_pretrained(str(path))
    out = extract(
        samples, sampling_rate=RATE, padding="max_length", return_attention_mask=True, return_tensors="pt",
        max_length=min(extract.n_samples, PADDED_SECONDS * RATE) if extract.chunk_length > 30 else extract.n_samples,
    )  # fmt: skip
    return {"input_features": out["input_features"], "feature_attention_mask": out["attention_mask"]}


@torch.inference_mode()
def reference_of(
    hf: Any, setup: Setup, name: str, generate: Generate, written: Written, harness: EngineHarness
) -> Reference:
    """transformers, alone with this one prompt."""
    ids = torch.from_numpy(generate.prepared.input_ids.copy())
    for item in generate.prepared.media:
        places = [place for start, length in item.spans for place in range(start, start + length)]
        ids[places[:2]] = setup.model.placeholder_ids[item.kind]
    banned = never_sampled(setup.model)
    media: dict[str, Any] = sounds_of(setup.path, written)
    if "image" in setup.model.placeholder_ids:
        media |= pixels_of(setup.path, generate, plain(written), harness.root)
        if name in EXPLICIT:
            return as_reference(len(ids), *explicit(hf, ids, generate, media, banned), banned)
        seconds = [item.seconds_per_grid for item in generate.prepared.media if item.seconds_per_grid]
        media["use_audio_in_video"] = n_media(plain(written)) > sum(not isinstance(part, str) for part in written)
        media["video_second_per_grid"] = torch.tensor(seconds) if seconds else None
    return as_reference(len(ids), *generated(hf, ids, media, banned), banned)


@pytest.fixture(scope="module", params=["qwen2_audio", pytest.param("qwen2_5_omni", marks=pytest.mark.matrix)])
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    path = WRITERS[request.param](tmp_path_factory.mktemp("tiny"))
    members = MEMBERS[request.param]
    hf = load_hf(path)
    hf.generation_config.eos_token_id = None  # all N tokens, whatever they are
    hf.generation_config.repetition_penalty = None
    found = Setup(path, load_ours(path), {name: plain(parts) for name, parts in members.items()}, {})
    with engine_harness_at(path, tmp_path_factory.mktemp("shm") / "root") as harness:
        for name, generate in prepared_one_by_one(harness, found.members):
            found.references[name] = reference_of(hf, found, name, generate, members[name], harness)
    yield found


@pytest.fixture
def harness(setup: Setup, tmp_path: Path) -> Iterator[EngineHarness]:
    with engine_harness_at(setup.path, tmp_path / "root") as found:
        yield found


def test_the_reference_is_sure_of_itself(setup: Setup) -> None:
    margins = torch.cat([reference.margins for reference in setup.references.values()])
    assert (margins > MARGIN).float().mean() >= 0.9
    assert all(len(set(reference.tokens)) > 2 for reference in setup.references.values())


def test_sound_in_a_video_lies_in_several_runs_and_time_moves_positions(setup: Setup, harness: EngineHarness) -> None:
    """What the tests below stand on."""
    for name in set(setup.members) & {"talkie", "image_talkie_audio", "both"}:
        generate = harness.prepare(name, setup.members[name])
        assert max(len(item.spans) for item in generate.prepared.media) > 1 and generate.prepared.position_delta != 0
        harness.pool.retire(name)
        harness.pool.settle(name)


@pytest.mark.parametrize(("tokens", "block_size"), [(7, 4), (2048, 16)])
def test_chunks(setup: Setup, harness: EngineHarness, tokens: int, block_size: int) -> None:
    submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=tokens, block_size=block_size))
    expected = {name: n_media(parts) for name, parts in setup.members.items() if n_media(parts)}
    assert {name: len(names) for name, names in harness.read.items()} == expected


def test_staggered(setup: Setup, harness: EngineHarness) -> None:
    submit_all(setup, harness, engine_at(setup.model, harness.root, tokens=64, seqs=3), every=3)


def test_preempted_while_decoding(setup: Setup, harness: EngineHarness) -> None:
    blocks = sum(-(-n // 4) for n in setup.lengths.values()) + 3  # all prompts fit, their answers do not
    engine = engine_at(
        setup.model, harness.root, tokens=2048, block_size=4, kv_tokens=4 * blocks, seqs=len(setup.members),
        max_model_len=max(setup.lengths.values()) + N, prefix_cache="off",
    )  # fmt: skip
    longest_first = sorted(setup.members, key=lambda name: -setup.lengths[name])  # no large one waits and makes room
    submit_all(setup, harness, engine, names=longest_first)
    assert engine.stats.preemptions > 0
    assert len(harness.read["twelve"]) == 12  # nothing was read a second time


def test_preempted_inside_the_prompt(setup: Setup, harness: EngineHarness) -> None:
    first, second = ("talkie", "image_talkie_audio") if "talkie" in setup.members else ("twelve", "audios")
    blocks = -(-setup.lengths[first] // 4) - (-setup.lengths[second] // 4) + 1
    longest = max(setup.lengths[first], setup.lengths[second]) + N
    engine = engine_at(
        setup.model, harness.root, tokens=16, block_size=4, kv_tokens=4 * blocks, max_model_len=longest,
        prefix_cache="off",
    )  # fmt: skip
    submit_all(setup, harness, engine, names=(first, second, "audio", "text"))
    assert engine.stats.preemptions > 0


def test_several_answers_to_one_prompt(setup: Setup, harness: EngineHarness) -> None:
    """Greedy ones are the same three times; all of them share what was heard."""
    names = [name for name in ("audios", "talkie", "image_talkie_audio", "text") if name in setup.members]
    engine = engine_at(setup.model, harness.root, tokens=64)
    submit_all(setup, harness, engine, names=names, sampling=msgspec.structs.replace(SAMPLING, n=3))
    assert {name: len(found) for name, found in harness.read.items()} == {
        name: n_media(setup.members[name]) for name in names if n_media(setup.members[name])
    }
