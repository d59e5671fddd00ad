"""Networks that hear against transformers' own implementation, from the same files on disk."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.net import audio_tower
from model.net.multimodal import MultimodalLM
from tests.parity.harness import (
    Film,
    Layouts,
    OurRun,
    Sound,
    hf_logits,
    load_hf,
    load_ours,
    make_sample,
)
from tests.parity.rounding import assert_logits, assert_no_further, assert_tower, check_bfloat16
from tests.parity.theirs import transformers
from tests.tables import entries
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_audio import SECONDS, write_qwen2_audio
from tokenization.media.mel import CONTEXT_FRAMES, MelSpec, log_mel

pytestmark = pytest.mark.network

WRITERS: dict[str, Callable[..., Path]] = {"qwen2_audio": write_qwen2_audio, "qwen2_5_omni": write_qwen2_5_omni}
LENGTHS = [3, 4, 5, 7, 39, 40, 41, 42, 79, 80, 81, 119, 199, 200, 201, 298, 299, 300]  # a chunk has 40
MORE_CHUNKS = [399, 400, 401, 803]
FILM = Film(grid=(3, 6, 4), seconds=1.0)
HEARD: dict[str, Layouts] = {
    "text": [23],
    "audio": [5, Sound(frames=57), 9],
    "short": [2, Sound(frames=8), 1],
    "audios": [2, Sound(frames=80), 1, Sound(frames=299), 3, Sound(frames=9), 6],
    "adjacent": [2, Sound(frames=30), Sound(frames=41), 4],
}
SEEN: dict[str, Layouts] = {
    "image": [5, (1, 6, 8), 9],
    "video": [3, FILM, 4],
    "audio_image_video": [2, Sound(frames=57), 3, (1, 4, 6), 1, FILM, 5],
    "audio_video_image": [2, Sound(frames=57), 3, FILM, 1, (1, 4, 6), 5],
    "image_audio_video": [1, (1, 4, 6), 2, Sound(frames=81), 3, FILM, 5],
    "image_video_audio": [1, (1, 4, 6), 2, FILM, 3, Sound(frames=81), 5],
    "video_audio_image": [1, FILM, 2, Sound(frames=40), 3, (1, 4, 6), 5],
    "video_image_audio": [1, FILM, 2, (1, 4, 6), 3, Sound(frames=40), 5],
}
LAYOUTS = {"qwen2_audio": HEARD, "qwen2_5_omni": {**HEARD, **SEEN}}


@dataclass(frozen=True)
class Both:
    path: Path
    ours: MultimodalLM
    hf: Any


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    paths = {family: write(tmp_path_factory.mktemp(family)) for family, write in WRITERS.items()}
    return {family: Both(path, load_ours(path), load_hf(path)) for family, path in paths.items()}


def hf_tower(hf: Any, features: Tensor, frames: int) -> Tensor:
    """features: [mels, padded]; `frames` of them are valid -> [tokens, hidden]"""
    with torch.inference_mode():
        if hasattr(hf.config, "vision_config"):
            mask = torch.arange(features.shape[1])[None] < frames
            found: Tensor = hf.model.get_audio_features(features[None], mask.long()).last_hidden_state
            return found
        states = (frames + 1) // 2
        mask = (torch.arange(features.shape[1] // 2) < states)[None, None, None]
        outputs = hf.model.audio_tower(features[None], attention_mask=mask).last_hidden_state
        projected: Tensor = hf.model.multi_modal_projector(outputs)[0, : states // 2]
        return projected


def padded(family: str, mel: Tensor, frames: int) -> Tensor:
    """[mels, padded] as transformers takes it; behind what we are given it holds other numbers than zero."""
    width = 100 * SECONDS if family == "qwen2_audio" else frames + 5
    found = torch.full((mel.shape[1], width), 0.5)
    n = min(len(mel), width)
    found[:, :n] = mel[:n].T
    return found


CASES_OF_LENGTH = [(family, n) for family in WRITERS for n in LENGTHS] + [("qwen2_5_omni", n) for n in MORE_CHUNKS]


@pytest.mark.parametrize("family", WRITERS)
def test_tower(models: dict[str, Both], family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with entries() as entry:
        for name, frames in CASES_OF_LENGTH:
            if name == family:
                with entry(frames), monkeypatch.context() as patched:
                    check_tower(models[family], family, frames, patched)


def check_tower(both: Both, family: str, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mel = make_sample(both.path, [1, Sound(frames=frames)], seed=frames).pixels[0]
    grid = (1, 1, frames)
    assert (
        tuple(mel.shape) == both.ours.encoders["audio"].input_shape(grid)
        and mel.dtype == both.ours.encoders["audio"].dtype
    )
    found = both.ours.encode("audio", [mel], [grid])[0]
    expected = hf_tower(both.hf, padded(family, mel, frames), frames)
    assert found.shape == ((frames + 1) // 2 // 2, both.ours.hidden_size)
    assert 0.1 < float(expected.abs().max()) < 10
    assert_tower(found, expected)
    monkeypatch.setattr(audio_tower, "MAX_ROWS", 40)  # two chunks at a time
    assert_tower(both.ours.encode("audio", [mel], [grid])[0], expected)


@pytest.mark.parametrize("family", WRITERS)
def test_hearing_rounds_no_worse(models: dict[str, Both], family: str) -> None:
    both = models[family]
    exact = load_hf(both.path, torch.float64)

    def outputs(frames: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        mel = make_sample(both.path, [1, Sound(frames=frames)], seed).pixels[0]
        given = padded(family, mel, frames)
        theirs = [
            hf_tower(hf, given.to(dtype), frames) for hf, dtype in ((both.hf, torch.float32), (exact, torch.float64))
        ]
        return both.ours.encode("audio", [mel], [(1, 1, frames)])[0], theirs[0], theirs[1]

    assert_no_further(outputs(frames, seed) for name, frames in CASES_OF_LENGTH if name == family for seed in range(3))


def test_a_pair_may_lie_in_two_chunks(tmp_path: Path) -> None:
    """With an odd number of states in a chunk."""
    path = write_qwen2_5_omni(tmp_path, n_window=5)
    ours, hf = load_ours(path), load_hf(path)
    with entries() as entry:
        for frames in (9, 10, 11, 12, 25, 27, 104):
            with entry(frames):
                mel = make_sample(path, [1, Sound(frames=frames)]).pixels[0]
                assert_tower(ours.encode("audio", [mel], [(1, 1, frames)])[0], hf_tower(hf, mel.T, frames))


@pytest.mark.parametrize("family", WRITERS)
def test_from_samples(models: dict[str, Both], family: str) -> None:
    """A sound that is loud to its last sample, through both extractors and both towers."""
    with entries() as entry:
        for n in (1600, 1601, 4799, 15960, 16001, 20123, 47680, 47681, 47841, 47999, 48000):
            with entry(n):
                check_sound(models[family], family, n)


def check_sound(both: Both, family: str, n: int) -> None:
    """Omni's extractor pads to more than the longest of them, as its 300 s are."""
    seconds = SECONDS if family == "qwen2_audio" else SECONDS + 2
    sound = np.random.default_rng(n).normal(0, 0.2, n).astype(np.float32)
    sound[:-100] *= 0.01
    extract = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=seconds)
    given = extract(sound, sampling_rate=16000, return_attention_mask=True, return_tensors="pt")
    frames = int(given["attention_mask"].sum())
    expected = hf_tower(both.hf, given["input_features"][0], frames)
    context = CONTEXT_FRAMES if family == "qwen2_audio" else 0
    mel = torch.from_numpy(log_mel(sound, MelSpec(n_mels=16), seconds * 16000, context))
    assert frames == -(-n // 160)
    found = both.ours.encode("audio", [mel], [(1, 1, frames)])[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)  # the two extractors differ by their rounding


@pytest.mark.parametrize("frames", [60, 61])
def test_what_lies_behind_the_sound_matters(models: dict[str, Both], frames: int) -> None:
    """The other way round: without these two frames the tower could not equal one that convolves the padding."""
    ours = models["qwen2_audio"].ours
    mel = make_sample(models["qwen2_audio"].path, [1, Sound(frames=frames)]).pixels[0]
    changed = mel.clone()
    changed[frames + frames % 2 :] += 1  # an even number of frames needs one, an odd one needs two
    found = [ours.encode("audio", [x], [(1, 1, frames)])[0] for x in (mel, changed)]
    assert float((found[0] - found[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("family", WRITERS)
def test_logits(models: dict[str, Both], family: str) -> None:
    both = models[family]
    with entries() as entry:
        for name, layout in LAYOUTS[family].items():
            sample = make_sample(both.path, layout)
            expected = hf_logits(both.hf, sample, both.path)
            with entry(name):
                assert expected.std() > 0.5
                assert_logits(both.ours, sample, expected)


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("block_size", [4, 128])
def test_mixed_batch(models: dict[str, Both], family: str, block_size: int) -> None:
    """Prefill chunks and decodes of four sequences in the same steps, text-only first."""
    both = models[family]
    names = ["text", "audio", "audios", "adjacent" if family == "qwen2_audio" else "video_image_audio"]
    samples = [make_sample(both.path, LAYOUTS[family][name], seed) for seed, name in enumerate(names)]
    schedule: list[list[tuple[int, int]]] = [  # each step: (sequence, new tokens)
        [(0, 20), (1, 9)],
        [(0, 1), (1, 9), (2, 11)],
        [(3, 17), (0, 1), (1, 1), (2, 80)],
        [(0, 1), (2, 1), (1, 1), (3, 3)],
        [(2, 1), (3, 1)],
    ]
    run = OurRun(both.ours, block_size, blocks=60)
    found: dict[int, list[Tensor]] = {i: [] for i in range(4)}
    for step in schedule:
        for key, logits in run.step([(i, samples[i], n) for i, n in step]).items():
            found[key].append(logits)
    for i, sample in enumerate(samples):
        logits = torch.cat(found[i])
        expected = hf_logits(both.hf, sample, both.path)[: len(logits)]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "layout"), [("qwen2_audio", "v5"), ("qwen2_5_omni", "v5"), ("qwen2_5_omni", "thinker")]
)
def test_all_layouts_give_equal_bits(models: dict[str, Both], tmp_path: Path, family: str, layout: str) -> None:
    path = WRITERS[family](tmp_path, layout=layout)
    sample = make_sample(models[family].path, LAYOUTS[family]["audios"])
    whole = [OurRun(model).whole(sample) for model in (models[family].ours, load_ours(path))]
    assert torch.equal(whole[0], whole[1])


def test_a_tied_head(tmp_path: Path) -> None:
    path = write_qwen2_5_omni(tmp_path, tied=True, seed=3)
    sample = make_sample(path, HEARD["audio"])
    found, expected = OurRun(load_ours(path)).whole(sample), hf_logits(load_hf(path), sample, path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", WRITERS)
def test_bfloat16(models: dict[str, Both], family: str) -> None:
    names = ["text", "audio", "audios"] + (["image_video_audio"] if family == "qwen2_5_omni" else [])
    check_bfloat16(models[family].path, models[family].hf, [LAYOUTS[family][name] for name in names])
