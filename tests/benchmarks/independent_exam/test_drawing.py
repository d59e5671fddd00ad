"""What is drawn is what the rules say: boxes around the painted pixels. Skia is in the exam's own environment."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.independent_exam.question import part_of
from benchmarks.independent_exam.rows import question
from benchmarks.independent_exam.scenes import LOOKS, Scene, scene

pytestmark = pytest.mark.slow

pytest.importorskip("skia", reason="drawn by Skia: `make exam-tests`")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("shape", ["circle", "star", "ring"])
def test_a_box_is_around_the_painted_pixels(look: str, shape: str) -> None:
    from benchmarks.independent_exam.drawing import pixels

    rng = np.random.default_rng(3)
    drawn = scene(
        [(shape, "")], "flat" if look == "phone noise" else look, rng, largest=0.5
    )  # noise covers every pixel
    drawn = replace(drawn, look="flat") if look == "phone noise" else drawn
    seed = 11
    while look == "gradient" and np.random.default_rng(seed).uniform(0, 1, 2)[1] >= 0.5:
        seed += 1  # a shadow lies beside the box
    with_it = pixels(drawn, np.random.default_rng(seed)).astype(int)
    without = pixels(replace(drawn, things=()), np.random.default_rng(seed)).astype(int)
    y, x = np.nonzero(np.abs(with_it - without).max(axis=2) > 90)
    found = (x.min(), y.min(), x.max() + 1, y.max() + 1)
    assert found == pytest.approx(drawn.things[0].box, abs=2.5)


@pytest.mark.parametrize("row", ["count one kind", "number", "two pictures", "motion"])
def test_every_look_becomes_the_same_file_by_the_same_seed(row: str) -> None:
    for n in range(len(LOOKS)):
        asked = question(row, n, 5)
        parts = [part_of(medium) for medium in asked.media]
        assert parts == [part_of(medium) for medium in question(row, n, 5).media]
        for part in parts:
            (url,) = part.values()
            assert url.startswith(("data:image/png;base64,", "data:image/jpeg;base64,", "data:video/mp4;base64,"))


def test_a_number_is_printed() -> None:
    from benchmarks.independent_exam.drawing import pixels

    (shown,) = question("number", 0, 5).media
    assert isinstance(shown, Scene)
    with_it, without = (pixels(one, np.random.default_rng(1)) for one in (shown, replace(shown, number="")))
    assert (with_it != without).any(axis=2).mean() > 0.01
