"""Tiles of pictures: how many, under which bounds, and what a request may not ask for."""

from pathlib import Path
from typing import Any

import pytest

from configs.serve import MediaConfig
from configs.settings import load_config
from server.defaults import with_own_pixels
from tests.published.edits import edit_json
from tests.published.layouts import host_of
from tests.samples.pictures import encoded, photo
from tests.tables import each_of
from tests.tiny.internvl import write_internvl
from tests.tiny.llava import write_llava
from tests.tokenization.worker_harness import url, worker_harness_at
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.media.source import Source
from tokenization.processor import Measure
from tokenization.tiled_pictures import TiledPictures, TileSize

LARGE = TileSize(side=32, patch=14, merge=2)
PICTURE = encoded(photo(1600, 900), "PNG")


def measured(cap: int = 12 * 448 * 448, **asked: Any) -> Measure:
    source = Source(kind="image", param="", data=PICTURE, options=MediaOptions.read(asked))
    return TiledPictures(tile=LARGE, cap=cap, most=12).measure(source, MediaConfig())


def test_how_many() -> None:
    whole = measured()
    assert (whole.grid, whole.n_tokens, whole.seen, whole.reduced) == ((9, 32, 32), 9 * 256, (4 * 448, 2 * 448), None)
    assert [measured(max_dynamic_patch=n).grid[0] for n in (1, 2, 6, 12)] == [1, 3, 3, 9]
    assert measured(detail="low").grid[0] == 1 and measured(max_pixels=3 * 448 * 448).grid[0] == 3
    capped = measured(cap=1_003_520)  # the default of models that are not cut into tiles
    assert capped.reduced is not None and capped.reduced.limit == "max_pixels"
    assert (capped.seen, capped.reduced.wanted) == ((896, 448), (1792, 896))


@each_of(
    ("asked", "field"),
    [({"min_pixels": 448 * 448 + 1}, "min_pixels"), ({"max_pixels": 448 * 448 - 1}, "max_pixels"),
     ({"max_dynamic_patch": 129}, "max_dynamic_patch"), ({"max_dynamic_patch": 0}, "max_dynamic_patch")],
)  # fmt: skip
def test_what_is_refused(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(ChatError, match=field):
        measured(**asked)


def test_the_largest_fits() -> None:
    pictures = TiledPictures(tile=LARGE, cap=12 * 448 * 448, most=12)
    sizes = [pictures.largest(MediaConfig(), tokens) for tokens in (1 << 20, 13 * 256 - 1, 512, 256, 255)]
    assert [None if one is None else one.grid[0] for one in sizes] == [13, 12, 1, 1, None]


def test_a_default_takes_no_tiles_away(tmp_path: Path) -> None:
    def at_size(values: dict[str, Any]) -> None:
        values["vision_config"]["image_size"] = [448, 448]

    path = edit_json(write_internvl(tmp_path), at_size)
    for flags, most in (([], 12 * 448 * 448), (["--max-pixels", "602112"], 602_112)):
        assert with_own_pixels(load_config(["--model", str(path), *flags], {})).media.max_pixels == most


def test_a_model_that_cuts_none_says_so(tmp_path: Path) -> None:
    with worker_harness_at(tmp_path / "shm", host_of(write_llava(tmp_path / "tiny"))) as harness:
        error = harness.refused([{"image": url(PICTURE), "max_dynamic_patch": 3}, {"text": "a"}])
        assert "cuts no picture into tiles" in error.message and error.param == "inputs[0].image"
