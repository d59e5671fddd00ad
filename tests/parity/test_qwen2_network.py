"""Networks of Qwen2-VL and Qwen2.5-VL against transformers' own implementation, from the same files on disk."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from model.net.multimodal import MultimodalLM
from tests.parity.harness import (
    Film,
    Layouts,
    OurRun,
    hf_logits,
    hf_media,
    load_hf,
    load_ours,
    make_sample,
)
from tests.parity.rounding import check_bfloat16, check_layouts
from tests.tables import entries
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.network

WRITERS: dict[str, Callable[..., Path]] = {"qwen2_vl": write_qwen2_vl, "qwen2_5_vl": write_qwen2_5_vl}
TEXT_ONLY: Layouts = [23]
ONE_IMAGE: Layouts = [5, (1, 6, 8), 9]
# Text between the images: 5.23 takes adjacent ones for one item.
THREE_IMAGES: Layouts = [2, (1, 2, 10), 1, (1, 8, 4), 3, (1, 4, 4), 6]
# Two at 4 and 1 frames a second: one temporal grid is two frames.
TWO_VIDEOS: Layouts = [3, Film(grid=(3, 6, 4), seconds=0.5), 2, Film(grid=(2, 10, 4), seconds=2.0), 5]
IMAGE_THEN_VIDEO: Layouts = [1, (1, 6, 4), 2, Film(grid=(2, 4, 6), seconds=1.0), 3]
VIDEO_THEN_IMAGE: Layouts = [1, Film(grid=(2, 4, 6), seconds=1.0), 2, (1, 6, 4), 3]
LONG_VIDEO: Layouts = [4, Film(grid=(10, 4, 4), seconds=1.0), 6]  # its time outruns its height and width
LAYOUTS = {
    "text": TEXT_ONLY, "one": ONE_IMAGE, "three": THREE_IMAGES, "two_videos": TWO_VIDEOS,
    "image_then_video": IMAGE_THEN_VIDEO, "video_then_image": VIDEO_THEN_IMAGE, "long_video": LONG_VIDEO,
}  # fmt: skip


@dataclass(frozen=True)
class Both:
    path: Path
    ours: MultimodalLM
    hf: Any


@pytest.fixture(scope="module", params=WRITERS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    path = WRITERS[request.param](tmp_path_factory.mktemp("tiny"))
    return Both(path, load_ours(path), load_hf(path))


def test_logits(both: Both) -> None:
    check_layouts(both.ours, both.hf, both.path, LAYOUTS)


def test_the_harness_makes_the_positions_of_transformers(both: Both) -> None:
    """Except of a long video: there 5.x lets text begin before the video ends, and the written rule does not."""
    with entries() as entry:
        for layout in LAYOUTS:
            with entry(layout):
                check_positions(both, layout)


def check_positions(both: Both, layout: str) -> None:
    sample = make_sample(both.path, LAYOUTS[layout])
    config = both.hf.config
    kinds = (sample.ids == config.image_token_id).int() + 2 * (sample.ids == config.video_token_id).int()
    grids = {key: value for key, value in hf_media(sample, both.path).items() if key.endswith("grid_thw")}
    if hasattr(config.vision_config, "tokens_per_second"):
        grids["second_per_grid_ts"] = torch.tensor([film.seconds for film in sample.films if film])
    expected, _ = both.hf.model.get_rope_index(sample.ids[None], kinds[None], **grids)
    last = int(sample.pads[-1]) if len(sample.pads) else 0
    assert torch.equal(sample.positions[:, : last + 1], expected[:, 0, : last + 1])
    assert torch.equal(sample.positions, expected[:, 0]) == (layout != "long_video")
    if layout == "long_video":
        assert sample.positions[0, last + 1] == sample.positions[:, : last + 1].max() + 1 > expected[0, 0, last + 1]


@pytest.mark.parametrize("block_size", [4, 128])
def test_mixed_batch(both: Both, block_size: int) -> None:
    """Prefill chunks and decodes of four sequences in the same steps, text-only first."""
    layouts = [TEXT_ONLY, IMAGE_THEN_VIDEO, TWO_VIDEOS, [40]]
    samples = [make_sample(both.path, layout, seed) for seed, layout in enumerate(layouts)]
    schedule: list[list[tuple[int, int]]] = [  # each step: (sequence, new tokens)
        [(0, 20), (1, 9)],
        [(0, 1), (1, 9), (2, 11)],
        [(3, 17), (0, 1), (1, 1), (2, 5)],
        [(0, 1), (2, 1), (1, 1), (3, 22)],
        [(2, 1), (3, 1)],
    ]
    run = OurRun(both.ours, block_size, blocks=40)
    found: dict[int, list[torch.Tensor]] = {i: [] for i in range(4)}
    for step in schedule:
        for key, logits in run.step([(i, samples[i], n) for i, n in step]).items():
            found[key].append(logits)
    for i, sample in enumerate(samples):
        logits = torch.cat(found[i])
        assert len(logits) >= 18
        expected = hf_logits(both.hf, sample, both.path)[: len(logits)]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_only_wanted_rows(both: Both) -> None:
    """FrameSampling one row gives that row of all; sampling none still fills the cache."""
    sample = make_sample(both.path, ONE_IMAGE)
    every = OurRun(both.ours).whole(sample)
    last = OurRun(both.ours).step([(0, sample, len(sample.ids))], sample_all=False)[0]
    assert last.shape == (1, both.ours.vocab_size)
    torch.testing.assert_close(last[0], every[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("family", "tied"), [("qwen2_vl", False), ("qwen2_5_vl", True)])
def test_the_other_head(tmp_path: Path, family: str, tied: bool) -> None:
    path = WRITERS[family](tmp_path, tied=tied, seed=3)
    sample = make_sample(path, ONE_IMAGE)
    found, expected = OurRun(load_ours(path)).whole(sample), hf_logits(load_hf(path), sample, path)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_both_layouts_give_equal_bits(both: Both, tmp_path: Path) -> None:
    write = WRITERS[both.hf.config.model_type]
    path = write(tmp_path, layout="v5")
    sample = make_sample(both.path, IMAGE_THEN_VIDEO)
    assert torch.equal(OurRun(both.ours).whole(sample), OurRun(load_ours(path)).whole(sample))


def test_bfloat16(both: Both) -> None:
    check_bfloat16(both.path, both.hf, [TEXT_ONLY, ONE_IMAGE, THREE_IMAGES, IMAGE_THEN_VIDEO])
