"""Building Qwen2.5-Omni: all three layouts, parts that are not read, and refusals with the key and the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from configs.checkpoint import Checkpoint, CheckpointError
from model.device import resolve
from model.registry import family_of
from tests.parity.harness import OurRun, Sound, load_ours, make_sample
from tests.tables import each_of
from tests.tiny.qwen2_5_omni import OmniLayout, write_qwen2_5_omni

pytestmark = pytest.mark.network

Config = dict[str, Any]


def edit(path: Path, change: Callable[[Config], object]) -> Path:
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))
    return path


@each_of("layout", ["hub", "thinker", "v5"])
def test_sizes(tmp_path: Path, layout: OmniLayout) -> None:
    path = write_qwen2_5_omni(tmp_path, layout=layout)
    model, family = load_ours(path), family_of(Checkpoint(path))
    assert family.name == "qwen2_5_omni"
    assert family.processor(Checkpoint(path), 10**6).modalities.keys() == {"image", "video", "audio"}
    assert model.encoders["image"].input_shape((1, 4, 6)) == (24, 588)
    assert model.encoders["video"].input_shape((3, 4, 6)) == (72, 1176)
    assert model.encoders["audio"].input_shape((1, 1, 57)) == (57, 16)
    dtypes = [model.encoders[kind].dtype for kind in ("image", "video", "audio")]
    assert dtypes == [torch.uint8, torch.uint8, torch.float32]
    assert set(model.placeholder_ids) == {"image", "video", "audio"} and len(set(model.placeholder_ids.values())) == 3
    assert model.media_token_ids > set(model.placeholder_ids.values()) and len(model.media_token_ids) == 7


@each_of(
    ("part", "key", "value", "message"),
    [
        ("audio_config", "activation_function", "relu", "audio_config: activation_function = 'relu'"),
        ("audio_config", "output_dim", 32, "audio_config: output_dim = 32"),
        ("audio_config", "n_window", 0, "'n_window' is 0, expected a whole number from 1"),
        ("audio_config", "n_window", 151, "n_window 151 does not lie in 1 to 150"),
        ("vision_config", "hidden_act", "gelu", "vision_config: hidden_act"),
        ("vision_config", "out_hidden_size", 32, "out_hidden_size"),
        ("text_config", "rope_scaling", {"mrope_section": [2, 3, 4]}, "must add up to 8"),
        ("text_config", "rope_scaling", {"type": "llama3", "mrope_section": [2, 3, 3]}, "type = 'llama3'"),
        ("text_config", "rope_scaling", {"type": "yarn", "mrope_section": [2, 3, 3]}, "'factor' is missing"),
    ],
)
def test_values_that_are_not_supported(tmp_path: Path, part: str, key: str, value: object, message: str) -> None:
    path = edit(write_qwen2_5_omni(tmp_path), lambda config: config["thinker_config"][part].update({key: value}))
    with pytest.raises(CheckpointError, match=rf"config\.json: thinker_config.*{message}"):
        load_ours(path)


def test_what_speaks_is_never_read(tmp_path: Path) -> None:
    """Not even when it could not be: it is stored as a type that nothing here reads."""
    path = write_qwen2_5_omni(tmp_path)
    tensors = load_file(path / "model.safetensors")
    spoken = [name for name in tensors if name.startswith(("talker.", "token2wav."))]
    assert len(spoken) == 3
    save_file(tensors | {name: np.zeros(7, np.int8) for name in spoken}, path / "model.safetensors")
    load_ours(path)
    save_file(tensors | {"speaker.embedding": np.zeros(7, np.float32)}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"does not use: speaker\.embedding"):
        load_ours(path)


@each_of("kind", ["mrope", "default"])
def test_the_ways_to_name_the_rope(tmp_path: Path, kind: str) -> None:
    base = write_qwen2_5_omni(tmp_path / "a")
    scaling = {"type": kind, "mrope_section": [2, 3, 3]}
    other = edit(
        write_qwen2_5_omni(tmp_path / "b"),
        lambda config: config["thinker_config"]["text_config"].update(rope_scaling=scaling),
    )
    sample = make_sample(base, [5, (1, 4, 6), 3])
    found = [OurRun(load_ours(path)).whole(sample) for path in (base, other)]
    assert torch.equal(found[0], found[1])


def test_only_the_thinker_says_whether_the_head_is_tied(tmp_path: Path) -> None:
    path = write_qwen2_5_omni(tmp_path / "a", layout="v5")
    assert json.loads((path / "config.json").read_text())["text_config"]["tie_word_embeddings"] is True
    tensors = load_file(path / "model.safetensors")
    sample = make_sample(path, [9])
    before = OurRun(load_ours(path)).whole(sample)
    save_file(tensors | {"lm_head.weight": 2 * tensors["lm_head.weight"]}, path / "model.safetensors")
    torch.testing.assert_close(OurRun(load_ours(path)).whole(sample), 2 * before, rtol=0, atol=1e-4)


def test_chunks_matter(tmp_path: Path) -> None:
    """The other way round: a tower that overlooked the key would give what it gives without the change."""
    paths = [write_qwen2_5_omni(tmp_path / str(n), n_window=n) for n in (20, 10)]
    mel = make_sample(paths[0], [1, Sound(frames=80)]).pixels[0]
    found = [load_ours(path).encode("audio", [mel], [(1, 1, 80)])[0] for path in paths]
    assert float((found[0] - found[1]).abs().max()) > 1e-2


def test_the_dtype_may_be_said_of_the_thinker(tmp_path: Path) -> None:
    def move(config: Config) -> None:
        del config["torch_dtype"]
        config["thinker_config"]["torch_dtype"] = "bfloat16"

    path = edit(write_qwen2_5_omni(tmp_path), move)
    checkpoint = Checkpoint(path)
    assert resolve("cpu", "auto", family_of(checkpoint).config(checkpoint), checkpoint.config)[1] == torch.bfloat16
