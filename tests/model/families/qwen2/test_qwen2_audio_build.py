"""Building Qwen2-Audio: which configurations load, and which are refused with the key and the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from configs.checkpoint import Checkpoint, CheckpointError
from model.registry import family_of
from tests.parity.harness import OurRun, Sound, load_ours, make_sample
from tests.tables import each_of
from tests.tiny.qwen2_audio import write_qwen2_audio

pytestmark = pytest.mark.network

Config = dict[str, Any]


def edit(path: Path, change: Callable[[Config], object]) -> Path:
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_sizes(tmp_path: Path) -> None:
    path = write_qwen2_audio(tmp_path)
    model, family = load_ours(path), family_of(Checkpoint(path))
    assert family.name == "qwen2_audio"
    assert family.processor(Checkpoint(path), 10**6).modalities.keys() == {"audio"}
    assert model.encoders["audio"].input_shape((1, 1, 57)) == (59, 16)
    assert model.encoders["audio"].dtype == torch.float32
    assert set(model.placeholder_ids) == {"audio"} == set(model.encoders)


def test_the_marks_of_a_sound_are_never_drawn(tmp_path: Path) -> None:
    path = write_qwen2_audio(tmp_path)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    marks = {tokenizer.token_to_id(text) for text in ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")}
    assert set(load_ours(path).banned_ids) == marks and None not in marks


@each_of(
    ("part", "key", "value", "message"),
    [
        ("audio_config", "activation_function", "relu", "audio_config: activation_function = 'relu'"),
        ("text_config", "hidden_act", "gelu", "text_config: hidden_act = 'gelu'"),
        ("text_config", "use_sliding_window", True, "use_sliding_window"),
        ("text_config", "rope_scaling", {"type": "yarn", "factor": 4.0}, "rope_scaling: type = 'yarn'"),
        ("text_config", "rope_scaling", {"type": "mrope", "mrope_section": [2, 3, 3]}, "type = 'mrope'"),
    ],
)
def test_values_that_are_not_supported(tmp_path: Path, part: str, key: str, value: object, message: str) -> None:
    path = edit(write_qwen2_audio(tmp_path), lambda config: config[part].update({key: value}))
    with pytest.raises(CheckpointError, match=message):
        load_ours(path)


@each_of(
    ("part", "keys", "message"),
    [
        ("text_config", ["hidden_size"], r"multi_modal_projector\.linear\.weight'.*\[4096, 32\]"),
        ("text_config", ["num_hidden_layers"], "config.json asks for 32 layers model.layers.N, and the weights hold 2"),
        ("text_config", ["vocab_size"], r"embed_tokens\.weight'.*\[151936, 64\]"),
        ("audio_config", ["max_source_positions"], r"embed_positions\.weight'.*\[1500, 32\]"),
        ("audio_config", ["num_mel_bins"], r"conv1\.weight'.*\[32, 128, 3\]"),
    ],
)
def test_keys_that_are_not_there_mean_the_published_sizes(
    tmp_path: Path, part: str, keys: list[str], message: str
) -> None:
    path = edit(write_qwen2_audio(tmp_path), lambda config: [config[part].pop(key) for key in keys])
    with pytest.raises(CheckpointError, match=message):
        load_ours(path)


def test_the_base_of_the_rope_is_read_and_has_its_default(tmp_path: Path) -> None:
    base = write_qwen2_audio(tmp_path / "a")
    silent = edit(write_qwen2_audio(tmp_path / "b"), lambda config: config["text_config"].pop("rope_theta"))
    other = edit(write_qwen2_audio(tmp_path / "c"), lambda config: config["text_config"].update(rope_theta=50.0))
    sample = make_sample(base, [12, Sound(frames=40), 5])
    found = [OurRun(load_ours(path)).whole(sample) for path in (base, silent, other)]
    assert torch.equal(found[0], found[1])
    assert float((found[0] - found[2]).abs().max()) > 1e-2


def test_an_unused_tensor_is_named(tmp_path: Path) -> None:
    path = write_qwen2_audio(tmp_path)
    tensors = load_file(path / "model.safetensors")
    name = "audio_tower.layers.0.self_attn.k_proj.bias"
    save_file(tensors | {name: tensors[name.replace("k_proj", "q_proj")]}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"does not use: audio_tower\.layers\.0\.self_attn\.k_proj\.bias"):
        load_ours(path)


def test_a_clip_that_is_too_long(tmp_path: Path) -> None:
    model = load_ours(write_qwen2_audio(tmp_path))
    with pytest.raises(ValueError, match="301 frames, this tower hears 300"):
        model.encode("audio", [torch.zeros(303, 16)], [(1, 1, 301)])[0]
