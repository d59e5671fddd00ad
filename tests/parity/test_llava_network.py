"""LLaVA-1.5's networks against transformers' own, from the same files on disk."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from model.net.multimodal import MultimodalLM
from tests.parity.harness import Layouts, OurRun, hf_logits, hf_pixels, load_hf, load_ours, make_sample
from tests.parity.rounding import assert_no_further, assert_tower, check_bfloat16, check_layouts
from tests.published.edits import edit_json
from tests.tiny.llava import write_llava

pytestmark = pytest.mark.network

IMAGE = (1, 4, 4)
LAYOUTS: dict[str, Layouts] = {
    "text": [23],
    "image": [5, IMAGE, 9],
    "first": [1, IMAGE, 3],
    "images": [2, IMAGE, 3, IMAGE, IMAGE, 7],
}


@dataclass(frozen=True)
class Both:
    path: Path
    ours: MultimodalLM
    hf: Any


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return opened(write_llava(tmp_path_factory.mktemp("llava")))


def opened(path: Path) -> Both:
    return Both(path, load_ours(path), load_hf(path))


@torch.inference_mode()
def hf_tower(hf: Any, pixels: Tensor) -> Tensor:
    """[1, 3, side, side] -> [tokens, hidden]"""
    (found,) = hf.model.get_image_features(pixels.to(hf.dtype)).pooler_output
    return found  # type: ignore[no-any-return]


def towers(both: Both, seed: int) -> tuple[Tensor, Tensor]:
    sample = make_sample(both.path, [1, IMAGE], seed)
    return both.ours.encode("image", [sample.pixels[0]], [IMAGE])[0], hf_tower(both.hf, hf_pixels(sample, both.path))


def test_tower(both: Both) -> None:
    found, expected = towers(both, 0)
    assert found.shape == (16, both.ours.hidden_size) and 0.1 < float(expected.std()) < 10
    assert_tower(found, expected)
    with pytest.raises(ValueError, match="this tower takes 4 x 4 patches"):
        both.ours.encode("image", [torch.zeros((24, 588), dtype=torch.uint8)], [(1, 4, 6)])[0]


def test_the_tower_rounds_no_worse(both: Both) -> None:
    exact = load_hf(both.path, torch.float64)

    def outputs(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        sample = make_sample(both.path, [1, IMAGE], seed)
        return *towers(both, seed), hf_tower(exact, hf_pixels(sample, both.path))

    assert_no_further(outputs(seed) for seed in range(20))


@pytest.mark.parametrize(
    "values",
    [
        {"vision_feature_select_strategy": "full"}, {"vision_feature_layer": -1}, {"vision_feature_layer": 1},
        {"vision_feature_layer": -3, "vision_feature_select_strategy": "full"},
    ],
)  # fmt: skip
def test_other_features_of_the_tower(tmp_path: Path, values: dict[str, Any]) -> None:
    path = edit_json(write_llava(tmp_path), lambda config: config.update(values))
    found, expected = towers(opened(path), 1)
    assert len(found) == (17 if "full" in values.values() else 16)
    assert_tower(found, expected)


def test_logits(both: Both) -> None:
    check_layouts(both.ours, both.hf, both.path, LAYOUTS)


@pytest.mark.parametrize("block_size", [4, 128])
def test_mixed_batch(both: Both, block_size: int) -> None:
    """Prefill chunks and decodes of four sequences in the same steps, text-only first."""
    samples = [make_sample(both.path, layout, seed) for seed, layout in enumerate(LAYOUTS.values())]
    schedule: list[list[tuple[int, int]]] = [  # each step: (sequence, new tokens)
        [(0, 20), (1, 9)],
        [(0, 1), (1, 9), (2, 11)],
        [(3, 17), (0, 1), (1, 1), (2, 8)],
        [(0, 1), (2, 1), (1, 1), (3, 40)],
        [(3, 1)],
    ]
    run = OurRun(both.ours, block_size)
    found: dict[int, list[Tensor]] = {i: [] for i in range(4)}
    for step in schedule:
        for key, logits in run.step([(i, samples[i], n) for i, n in step]).items():
            found[key].append(logits)
    for i, sample in enumerate(samples):
        logits = torch.cat(found[i])
        expected = hf_logits(both.hf, sample, both.path)[: len(logits)]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def without(part: str) -> Callable[[str], str]:
    return lambda name: name.replace(part, "")


@pytest.mark.parametrize("rename", [None, without("vision_model."), lambda name: f"model.{name}"])
def test_all_names_on_disk_give_equal_bits(both: Both, tmp_path: Path, rename: Callable[[str], str] | None) -> None:
    """transformers 5's own names; its saves of the hub's directory; a tower under both prefixes."""
    path = write_llava(tmp_path, layout="hub" if rename else "v5")
    if rename is not None:
        tensors = load_file(path / "model.safetensors")
        changed = {rename(name) if "vision_tower" in name else name: value for name, value in tensors.items()}
        assert changed.keys() != tensors.keys()
        save_file(changed, path / "model.safetensors", metadata={"format": "pt"})
    sample = make_sample(both.path, LAYOUTS["images"])
    whole = [OurRun(model).whole(sample) for model in (both.ours, load_ours(path))]
    assert torch.equal(whole[0], whole[1])


def test_saved_again_by_transformers(both: Both, tmp_path: Path) -> None:
    both.hf.save_pretrained(tmp_path)
    sample = make_sample(both.path, LAYOUTS["images"])
    whole = [OurRun(model).whole(sample) for model in (both.ours, load_ours(tmp_path))]
    assert torch.equal(whole[0], whole[1])


def test_a_tied_head(tmp_path: Path) -> None:
    path = edit_json(write_llava(tmp_path), lambda config: config.update(tie_word_embeddings=True))
    tensors = load_file(path / "model.safetensors")
    del tensors["language_model.lm_head.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    sample = make_sample(path, LAYOUTS["image"])
    found, expected = OurRun(load_ours(path)).whole(sample), hf_logits(load_hf(path), sample, path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_bfloat16(both: Both) -> None:
    check_bfloat16(both.path, both.hf, list(LAYOUTS.values()))
