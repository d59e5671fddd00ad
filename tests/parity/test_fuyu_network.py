"""Fuyu's networks against transformers' own implementation, from the same files on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.net.multimodal import MultimodalLM
from tests.parity.harness import Layouts, OurRun, hf_logits, load_hf, load_ours, make_sample
from tests.parity.in_rows import Rows, hf_rows
from tests.parity.rounding import assert_tower, check_bfloat16, check_layouts
from tests.published.edits import edit_json, edit_tensors
from tests.tiny.fuyu import write_fuyu

pytestmark = pytest.mark.network

LAYOUTS: dict[str, Layouts] = {
    "text": [23],
    "picture": [Rows(rows=3, columns=5), 9],
    "row": [Rows(rows=1, columns=7), 4],
    "column": [Rows(rows=9, columns=1), 4],
    "inside": [3, Rows(rows=4, columns=3), 6],  # no processor makes it, but a network can
}


@dataclass(frozen=True)
class Both:
    path: Path
    ours: MultimodalLM
    hf: Any


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    path = write_fuyu(tmp_path_factory.mktemp("tiny"))
    return Both(path, load_ours(path), load_hf(path))


def test_logits(both: Both) -> None:
    check_layouts(both.ours, both.hf, both.path, LAYOUTS)


@pytest.mark.parametrize("block_size", [4, 128])
def test_mixed_batch(both: Both, block_size: int) -> None:
    """Prefill chunks and decodes of three sequences in the same steps, text-only first."""
    samples = [make_sample(both.path, LAYOUTS[name], i) for i, name in enumerate(("text", "picture", "inside"))]
    schedule = [[(0, 20), (1, 4)], [(0, 1), (1, 9), (2, 5)], [(0, 1), (1, 12), (2, 1)], [(0, 1), (1, 2), (2, 19)]]
    run = OurRun(both.ours, block_size, blocks=40)
    found: dict[int, list[torch.Tensor]] = {i: [] for i in range(len(samples))}
    for step in schedule:
        for key, logits in run.step([(i, samples[i], n) for i, n in step]).items():
            found[key].append(logits)
    for i, sample in enumerate(samples):
        expected = hf_logits(both.hf, sample, both.path)
        torch.testing.assert_close(torch.cat(found[i]), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (3, 5), (36, 64)])
def test_patches_become_embeddings(both: Both, rows: int, columns: int) -> None:
    """One linear: how its sums are rounded is the library's, so that only the bar is asked."""
    pixels = make_sample(both.path, [Rows(rows=rows, columns=columns)]).pixels[0]
    assert tuple(pixels.shape) == both.ours.encoders["image"].input_shape((1, rows, columns))
    with torch.inference_mode():
        theirs = both.hf.model.get_image_features(hf_rows(pixels)[None]).last_hidden_state[0]
    assert theirs.std() > 0.5
    assert_tower(both.ours.encode("image", [pixels], [(1, rows, columns)])[0], theirs)


def test_both_layouts_give_equal_bits(both: Both, tmp_path: Path) -> None:
    sample = make_sample(both.path, LAYOUTS["picture"])
    assert torch.equal(
        OurRun(both.ours).whole(sample), OurRun(load_ours(write_fuyu(tmp_path, layout="v5"))).whole(sample)
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 25000.0, "partial_rotary_factor": 1.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 25000.0}},  # half of a head
        {"layer_norm_eps": 0.1},
        {"num_attention_heads": 2},
        {"qk_layernorm": False},
    ],
    ids=str,
)
def test_what_a_configuration_says_counts(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = edit_json(write_fuyu(tmp_path, layout="v5"), lambda values: values["text_config"].update(changed))
    if "num_attention_heads" in changed:  # heads twice as wide
        edit_tensors(path, lambda tensors: tensors.update(_twice(tensors)))
    if "qk_layernorm" in changed:
        edit_tensors(path, lambda tensors: [tensors.pop(name) for name in _head_norms(tensors)])
    sample = make_sample(path, LAYOUTS["picture"])
    found, expected = OurRun(load_ours(path)).whole(sample), hf_logits(load_hf(path), sample, path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_where_a_file_names_no_theta(tmp_path: Path) -> None:
    """25000, as in the releases of the published checkpoint. 5.23 takes its general default, which none of them had."""
    path = write_fuyu(tmp_path)
    sample = make_sample(path, LAYOUTS["picture"])
    named = OurRun(load_ours(path)).whole(sample)
    edit_json(path, lambda values: [values.pop(key) for key in ("rope_theta", "partial_rotary_factor")])
    assert torch.equal(OurRun(load_ours(path)).whole(sample), named)


def _head_norms(tensors: dict[str, Any]) -> list[str]:
    return [name for name in tensors if "q_layernorm" in name or "k_layernorm" in name]


def _twice(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: np.tile(tensors[name], 2) for name in _head_norms(tensors)}


def test_bfloat16(both: Both) -> None:
    check_bfloat16(both.path, both.hf, [LAYOUTS[name] for name in ("text", "picture", "inside")])
