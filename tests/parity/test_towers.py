"""Towers that see, of every family on them, against transformers' own: in float32, and both against float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.net import rope_vit
from model.net.multimodal import MultimodalLM
from tests.parity.harness import Film, Grid, hf_pixels, load_hf, load_ours, make_sample
from tests.parity.rounding import assert_no_further, assert_tower
from tests.tables import entries
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.network

WRITERS: dict[str, Callable[..., Path]] = {
    "qwen2_vl": write_qwen2_vl, "qwen2_5_vl": write_qwen2_5_vl, "qwen2_5_omni": write_qwen2_5_omni,
}  # fmt: skip
# A window has 8 x 8 patches: smaller than one, one, four, and ragged ones at either edge and at both.
GRIDS: list[Grid] = [
    (1, 2, 2), (1, 2, 14), (1, 12, 2), (1, 6, 8), (1, 8, 8), (1, 16, 16), (1, 16, 20), (1, 18, 10), (1, 34, 26),
]  # fmt: skip
FILMS: list[Grid] = [(1, 4, 4), (2, 4, 6), (3, 8, 8), (2, 18, 10), (5, 10, 18)]
CASES = [("image", grid) for grid in GRIDS] + [("video", grid) for grid in FILMS]


class Tower:
    """One checkpoint's tower, as transformers and as we compute it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ours: MultimodalLM = load_ours(path)
        self._seen: dict[tuple[str, Grid, torch.dtype], Tensor] = {}
        self._hf = {dtype: load_hf(path, dtype) for dtype in (torch.float32, torch.float64)}

    def pixels(self, kind: str, grid: Grid) -> Tensor:
        return make_sample(self.path, [grid if kind == "image" else Film(grid=grid)]).pixels[0]

    def theirs(self, kind: str, grid: Grid, dtype: torch.dtype = torch.float32) -> Tensor:
        key = kind, grid, dtype
        if key not in self._seen:
            self._seen[key] = self._forward(kind, grid, dtype)
        return self._seen[key]

    def _forward(self, kind: str, grid: Grid, dtype: torch.dtype) -> Tensor:
        sample = make_sample(self.path, [grid if kind == "image" else Film(grid=grid)])
        visual: Any = self._hf[dtype].model.visual
        with torch.inference_mode():
            found: Tensor = visual(
                hf_pixels(sample, self.path, kind).to(dtype), grid_thw=torch.tensor([grid])
            ).pooler_output
        return found


@pytest.fixture(scope="module", params=WRITERS)
def tower(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tower:
    return Tower(WRITERS[request.param](tmp_path_factory.mktemp("tiny")))


def test_vision_tower(tower: Tower, monkeypatch: pytest.MonkeyPatch) -> None:
    with entries() as entry:
        for kind, grid in CASES:
            with entry((kind, grid)), monkeypatch.context() as patched:
                check_tower(tower, kind, grid, patched)


def check_tower(tower: Tower, kind: str, grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, expected = tower.pixels(kind, grid), tower.theirs(kind, grid)
    found = tower.ours.encode(kind, [pixels], [grid])[0]
    assert found.shape == (grid[0] * grid[1] * grid[2] // 4, tower.ours.hidden_size)
    assert 0.1 < float(expected.abs().max()) < 10
    assert_tower(found, expected)
    monkeypatch.setattr(rope_vit, "MAX_ROWS", 2 * grid[1] * grid[2])  # two temporal grids at a time
    assert_tower(tower.ours.encode(kind, [pixels], [grid])[0], expected)


def test_vision_rounds_no_worse(tower: Tower) -> None:
    assert_no_further(
        (tower.ours.encode(kind, [tower.pixels(kind, grid)], [grid])[0], tower.theirs(kind, grid),
         tower.theirs(kind, grid, torch.float64))
        for kind, grid in CASES
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["image", "video"])
def test_several_media_are_those_of_one_by_one(tower: Tower, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many sizes in one call, however many go through the tower together."""
    grids = GRIDS if kind == "image" else FILMS
    pixels = [tower.pixels(kind, grid) for grid in grids]
    alone = [tower.ours.encode(kind, [array], [grid])[0] for array, grid in zip(pixels, grids, strict=True)]
    with entries() as entry:
        for rows in (1, 300, 8192):
            with entry(rows):
                monkeypatch.setattr(rope_vit, "MAX_ROWS", rows)
                for found, expected in zip(tower.ours.encode(kind, pixels, grids), alone, strict=True):
                    assert_tower(found, expected)
    with pytest.raises(ValueError, match="do not fit"):
        tower.ours.encode(kind, pixels, [*grids[1:], grids[0]])
