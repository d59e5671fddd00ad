"""What transformers 5 saves in processor_config.json counts, section by section, before the older files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import MediaConfig
from model.families.qwen2.audio_features import FeatureExtractor
from model.families.qwen2.recipe import pixel_specs
from model.grids.bounds import frame_rules
from server.report import describe
from server.requests.model_card import read_model_card
from server.thread_limit import Threads
from tests.parity.harness import load_ours
from tests.parity.theirs import transformers
from tests.published.layouts import SEEING, WRITERS, audio_as_published, change, config_of, host_of
from tests.samples.pictures import encoded, photo
from tests.samples.sounds import make_wav
from tests.samples.soundtracks import tone
from tests.tables import entries
from tests.tiny.qwen_vl import write_qwen_vl
from tokenization.chat.dialects import chat_from_native
from tokenization.media.source import Source
from tokenization.processor import StageClock

pytestmark = pytest.mark.network

LIMITS = MediaConfig()
SMALL = {"shortest_edge": 3136, "longest_edge": 50176}  # pixels; 640x480 becomes 12 x 18 patches, 54 tokens
QUESTION = "what is in it?"
FLAGS = {"default_to_square": True, "data_format": "channels_first", "do_sample_frames": False, "fps": None}


def resaved(path: Path, **values: Any) -> Path:
    """Pictures and videos as transformers 5 saves them: in sections, with all their values, instead of the files."""
    pictures = {**transformers.Qwen2VLImageProcessorPil.from_pretrained(path).to_dict(), **values}
    assert pictures["image_processor_type"].startswith("Qwen2VLImageProcessor")
    moving = {key: value for key, value in pictures.items() if key != "image_processor_type"}
    sections = {
        "image_processor": {**pictures, **FLAGS, "image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_processor": {
            **moving, **FLAGS, "min_frames": 4, "max_frames": 768, "max_video_tokens": 128000,
            "return_metadata": False, "video_processor_type": "Qwen2VLVideoProcessor",
        },
    }  # fmt: skip
    if "feature_size" in json.loads((path / "preprocessor_config.json").read_text()):
        sections["feature_extractor"] = transformers.WhisperFeatureExtractor.from_pretrained(path).to_dict()
    (path / "preprocessor_config.json").unlink()
    change(path, "processor_config.json", processor_class="X", **json.loads(json.dumps(sections, default=float)))
    return path


@pytest.fixture(params=SEEING)
def seeing(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint as the hub has it."""
    return WRITERS[request.param](tmp_path)


def whole_prompt(path: Path, picture: Image.Image) -> tuple[list[int], np.ndarray]:
    """Ids of one picture and a question, and the picture's normalised patches float32 [n, 588]."""
    host, data = host_of(path), encoded(picture, "PNG")
    measure = host.measure(Source(kind="image", param="", data=data), LIMITS)
    layout = host.expand(host.render(chat_from_native([{"image": "x"}, {"text": QUESTION}])), [measure])
    patches = host.load(Source(kind="image", param="", data=data), measure, LIMITS, StageClock())
    spec = pixel_specs(Checkpoint(path))["image"]
    mean, std = (np.array(values, np.float32)[:, None] for values in (spec.mean, spec.std))
    channels = patches.reshape(len(patches), 3, -1).astype(np.float32)
    return layout.input_ids.tolist(), ((channels * np.float32(spec.rescale) - mean) / std).reshape(len(patches), -1)


def assert_as_transformers(path: Path, tokens: int | None = None) -> None:
    """Ids and normalised pixels equal those of transformers' classes on the same directory."""
    picture = photo(640, 480)
    theirs = transformers.Qwen2VLImageProcessorPil.from_pretrained(path)(images=[picture], return_tensors="np")
    n = int(np.prod(theirs["image_grid_thw"][0])) // 4
    assert tokens is None or n == tokens
    host = host_of(path)
    pad = host.placeholders["image"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    template = json.loads((path / "chat_template.json").read_text())["chat_template"]
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    short = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], chat_template=template, add_generation_prompt=True, return_dict=False
    )
    expected = [found for one in short for found in ([pad] * n if one == pad else [one])]
    ids, pixels = whole_prompt(path, picture)
    assert ids == expected
    first = theirs["pixel_values"].reshape(len(pixels), 3, 2, -1)[:, :, 0].reshape(len(pixels), -1)
    assert np.abs(pixels - first).max() < 1e-6


# ---- pictures


def test_bounds_of_a_save_count(seeing: Path) -> None:
    """640x480 under a longest_edge of 50176: 54 tokens of the picture, where the class's default gives 391."""
    assert_as_transformers(resaved(seeing, size=SMALL), tokens=54)
    text = len(host_of(seeing).render(chat_from_native([{"image": "x"}, {"text": ""}]))) - 1
    padded = chat_from_native([{"image": "x"}, {"text": "x" * (28 - text)}])  # the prompt of 82 ids
    measure = host_of(seeing).measure(Source(kind="image", param="", data=encoded(photo(640, 480), "PNG")), LIMITS)
    assert len(host_of(seeing).expand(host_of(seeing).render(padded), [measure]).input_ids) == 82


def test_mean_and_std_of_a_save_count(seeing: Path) -> None:
    resaved(seeing, size=SMALL, image_mean=[0.5] * 3, image_std=[0.25, 0.5, 0.75], rescale_factor=1 / 127.5)
    assert_as_transformers(seeing, tokens=54)
    specs = pixel_specs(Checkpoint(seeing))
    assert specs["image"] == specs["video"] and specs["image"].mean == (0.5, 0.5, 0.5)


def test_the_section_replaces_the_older_file(seeing: Path) -> None:
    """Saved into a copy of the hub's directory: the files stay beside it, with other bounds and another mean."""
    older = (seeing / "preprocessor_config.json").read_bytes()
    resaved(seeing, size=SMALL)
    (seeing / "preprocessor_config.json").write_bytes(older)
    change(seeing, "preprocessor_config.json", image_mean=[0.1] * 3, max_pixels=200704, patch_size=16)
    assert_as_transformers(seeing, tokens=54)


def test_nothing_is_merged_into_a_section(seeing: Path) -> None:
    """A key that the section leaves out takes the class's default, whatever the older file says."""
    change(seeing, "preprocessor_config.json", image_mean=[0.1] * 3, max_pixels=50176)
    change(seeing, "processor_config.json", image_processor={"image_std": [0.5] * 3})
    assert_as_transformers(seeing, tokens=391)


def test_a_file_without_sections_leaves_the_older_one(seeing: Path) -> None:
    change(seeing, "preprocessor_config.json", max_pixels=50176)
    flat: list[dict[str, Any]] = [{}, {"processor_class": "X"}, {"image_processor": None, "video_processor": None}]
    with entries() as entry:
        for values in flat:
            (seeing / "processor_config.json").write_text(json.dumps(values))
            with entry(values):
                assert_as_transformers(seeing, tokens=54)
                assert host_of(seeing).origins["pictures"] == "preprocessor_config.json"


def test_what_is_not_supported_is_named_with_its_section(tmp_path: Path) -> None:
    path = WRITERS["qwen2_vl"](tmp_path)
    unsupported: list[tuple[str, dict[str, Any], str]] = [
        ("image_processor", {"patch_size": 16}, "patch_size = 16"),
        ("image_processor", {"do_resize": False}, "do_resize = False"),
        ("image_processor", {"size": {"longest_edge": "x"}}, "size: 'longest_edge' is 'x'"),
        ("video_processor", {"merge_size": 4}, "merge_size = 4"),
        ("video_processor", {"temporal_patch_size": 4}, "temporal_patch_size = 4"),
    ]
    with entries() as entry:
        for section, values, said in unsupported:
            (path / "processor_config.json").write_text(json.dumps({section: values}))
            with entry(said), pytest.raises(CheckpointError, match=f"^processor_config.json: {section}: {said}"):
                host_of(path)


# ---- videos


def test_sampling_of_a_save_counts(seeing: Path) -> None:
    change(seeing, "video_preprocessor_config.json", min_frames=2, max_frames=20)
    assert (frame_rules(Checkpoint(seeing)).min_frames, frame_rules(Checkpoint(seeing)).max_frames) == (2, 20)
    change(seeing, "processor_config.json", video_processor={"max_frames": 6})
    assert (frame_rules(Checkpoint(seeing)).min_frames, frame_rules(Checkpoint(seeing)).max_frames) == (4, 6)


def test_videos_are_normalised_by_their_own_section(seeing: Path) -> None:
    resaved(seeing)
    saved = json.loads((seeing / "processor_config.json").read_text())["video_processor"]
    change(seeing, "processor_config.json", video_processor={**saved, "image_mean": [0.5] * 3})
    specs = pixel_specs(Checkpoint(seeing))
    assert specs["video"].mean == (0.5, 0.5, 0.5) != specs["image"].mean
    still, moving = (load_ours(seeing).encoders[kind].embed for kind in ("image", "video"))  # type: ignore[attr-defined]
    assert float(moving.shift[0]) == pytest.approx(-0.5 / specs["video"].std[0])
    assert float(still.shift[0]) == pytest.approx(-specs["image"].mean[0] / specs["image"].std[0])


def test_where_no_file_speaks_of_videos_they_are_normalised_as_pictures(seeing: Path) -> None:
    change(seeing, "preprocessor_config.json", image_mean=[0.5] * 3)
    specs = pixel_specs(Checkpoint(seeing))
    assert specs["video"] == specs["image"] and specs["video"].mean == (0.5, 0.5, 0.5)


# ---- sounds


def heard_seconds(path: Path) -> float:
    """Of the longest sound, by the published extractor's class on the directory; ours says the same."""
    theirs = transformers.WhisperFeatureExtractor.from_pretrained(path)
    audio = Checkpoint(path).config.child("thinker_config").child("audio_config")
    found = FeatureExtractor(Checkpoint(path), audio)
    assert found.max_seconds == theirs.chunk_length and found.spec.n_mels == theirs.feature_size
    return found.max_seconds


@pytest.mark.parametrize("key", ["feature_extractor", "audio_processor"])
def test_length_of_sounds_of_a_save_counts(tmp_path: Path, key: str) -> None:
    path = WRITERS["qwen2_5_omni"](tmp_path)
    section = transformers.WhisperFeatureExtractor.from_pretrained(path).to_dict()
    (path / "preprocessor_config.json").unlink()
    change(path, "processor_config.json", **{key: section})
    assert heard_seconds(path) == 300
    change(path, "preprocessor_config.json", chunk_length=60, feature_size=8)
    assert heard_seconds(path) == 300
    change(path, "processor_config.json", feature_extractor={**section, "chunk_length": 120}, audio_processor=section)
    assert heard_seconds(path) == 120


def test_qwen2_audio_as_its_processor_saves_itself(tmp_path: Path) -> None:
    """The published directory, saved by the real class: no preprocessor_config.json, and the class's template."""
    path = audio_as_published(tmp_path)
    theirs = transformers.Qwen2AudioProcessor.from_pretrained(path)
    (path / "preprocessor_config.json").unlink()
    theirs.save_pretrained(path)
    assert not (path / "preprocessor_config.json").exists()
    host = host_of(path)
    assert host.origins == {
        "chat template": "chat_template.jinja",
        "sounds": "processor_config.json: feature_extractor",
    }
    samples = tone(16000)
    measure = host.measure(Source(kind="audio", param="", data=make_wav(samples)), LIMITS)
    mel = host.load(Source(kind="audio", param="", data=make_wav(samples)), measure, LIMITS, StageClock())
    floats = (samples / 32768).astype(np.float32)
    features = theirs.feature_extractor(floats, sampling_rate=16000, return_tensors="np")["input_features"][0]
    assert np.abs(mel[:100] - features.T[:100]).max() < 2e-4


# ---- the table at start


def rows(path: Path) -> dict[str, str]:
    """Of the start-up table: what is read -> where from."""
    text = describe(
        config_of(path), read_model_card(config_of(path)), Path("/root"), 1 << 30, Threads(n=2, reason="2 cores")
    )
    lines = [line.strip().partition("  from ") for line in text.splitlines() if "  from " in line]
    return {what.strip(): origin.strip() for what, _, origin in lines}


def test_the_table_says_where_each_section_came_from(tmp_path: Path) -> None:
    path = WRITERS["qwen2_5_omni"](tmp_path)
    assert rows(path) == {
        "chat template": "chat_template.json",
        "pictures": "preprocessor_config.json",
        "videos": "rules of qwen-vl-utils (video_preprocessor_config.json is missing)",
        "sounds": "preprocessor_config.json",
    }
    resaved(path)
    assert rows(path) == {
        "chat template": "chat_template.json",
        "pictures": "processor_config.json: image_processor",
        "videos": "processor_config.json: video_processor",
        "sounds": "processor_config.json: feature_extractor",
    }
    (path / "processor_config.json").unlink()
    audio = {**json.loads((path / "config.json").read_text())["thinker_config"]["audio_config"]}
    change(path, "processor_config.json", feature_extractor={"feature_size": audio["num_mel_bins"]})
    assert rows(path)["pictures"] == "class defaults (preprocessor_config.json is missing)"


def test_the_table_names_what_the_model_takes_and_nothing_else(tmp_path: Path) -> None:
    assert set(rows(audio_as_published(tmp_path / "audio"))) == {"chat template", "sounds"}
    assert set(rows(WRITERS["qwen2_vl"](tmp_path / "vl"))) == {"chat template", "pictures", "videos"}
    assert rows(write_qwen_vl(tmp_path / "old", ["Hello"])) == {
        "chat template": "the processor's class",
        "pictures": "config.json: visual",
    }
    assert rows(write_qwen_vl(tmp_path / "text", ["Hello"], sees=False)) == {"chat template": "the processor's class"}
