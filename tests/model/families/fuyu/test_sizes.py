"""How large a picture is seen, under a server's or a request's bound too."""

from pathlib import Path
from random import Random

import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from model.families.fuyu.sizes import SizeLimit, largest_grid, published_box, sized
from tests.published.edits import edit_json
from tests.tables import each_of
from tests.tiny.fuyu import write_fuyu

pytestmark = pytest.mark.network

BOX = SizeLimit(height=1080, width=1920, patch=30)
ALL = 1080 * 1920


@each_of(
    ("size", "expected"),
    [((100, 70), (100, 70)), ((1080, 1920), (1080, 1920)), ((2160, 3840), (1080, 1920)), ((1081, 40), (1080, 39))],
)
def test_only_what_is_larger_than_the_box_is_scaled(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert sized(*size, BOX, ALL) == expected


def test_no_bound_is_passed_and_none_is_wasted() -> None:
    rng = Random(0)
    for _ in range(500):
        height, width = rng.randrange(30, 3000), rng.randrange(30, 3000)
        pixels = rng.randrange(900 * 110, ALL)
        found = sized(height, width, BOX, pixels)
        _, rows, columns = BOX.grid(*found)
        assert rows * columns * 900 <= pixels and rows <= 36 and columns <= 64
        whole = BOX.fitted(height, width)
        if found != whole:
            assert found[0] <= whole[0] and found[1] <= whole[1]
            assert abs(found[0] / found[1] * width / height - 1) < max(2 / found[0], 2 / found[1])
            larger = [int(side * 1.08) for side in found]  # a patch more in either direction
            _, rows, columns = BOX.grid(larger[0] + 30, larger[1] + 30)
            assert rows * columns * 900 > pixels or larger[0] > whole[0] or larger[1] > whole[1]


@each_of(("height", "width", "pixels"), [(9000, 1, ALL), (1, 9000, ALL), (60, 60, 899)])
def test_a_picture_of_which_nothing_is_left(height: int, width: int, pixels: int) -> None:
    with pytest.raises(ValueError, match="no place"):
        sized(height, width, BOX, pixels)


@each_of("pixels", [900, 901, 50_000, 1_003_520, ALL, 1 << 40])
@each_of("tokens", [1, 2, 50, 900, 1 << 20])
def test_the_largest_has_most_patches(pixels: int, tokens: int) -> None:
    grids = [
        (1, rows, columns)
        for rows in range(1, 37)
        for columns in range(1, 65)
        if rows * columns * 900 <= pixels and rows * (columns + 1) <= tokens
    ]
    found = largest_grid(BOX, pixels, tokens)
    assert (found is None) == (not grids)
    assert found is None or (found in grids and found[1] * found[2] == max(grid[1] * grid[2] for grid in grids))


@each_of(
    ("change", "said"),
    [
        ({"size": {"height": 1000, "width": 1920}}, "size: 1000 x 1920 is not whole patches of 30"),
        ({"size": {"height": 0, "width": 1920}}, "size: 'height' is 0"),
        ({"patch_size": {"height": 30, "width": 20}}, "patch_size: width = 20"),
    ],
)
def test_boxes_that_are_not_supported(tmp_path: Path, change: dict[str, object], said: str) -> None:
    edit_json(write_fuyu(tmp_path), lambda values: values.update(change), "preprocessor_config.json")
    with pytest.raises(CheckpointError, match=said):
        published_box(Checkpoint(tmp_path))


def test_the_class_default_is_the_published_box(tmp_path: Path) -> None:
    write_fuyu(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    assert published_box(Checkpoint(tmp_path)) == BOX
