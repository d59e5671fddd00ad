"""The size of a picture: scaled down to a limit, then cut into rows of patches."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from configs.checkpoint import Checkpoint, CheckpointError
from model.family import PixelBounds

PATCH = 30  # side of a patch in pixels, where the file does not say
IMAGE_TOKEN_ID = 71011  # of what stands for a patch in the prompt, where the file does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimit:
    """What a picture must fit into, in pixels; both sides are whole patches."""

    height: int
    width: int
    patch: int

    def fitted(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of a picture scaled down into the box; a smaller one stays as it is. May be 0."""
        if height <= self.height and width <= self.width:
            return height, width
        # In this order, as the published processor computes: another rounding would lose a row of patches.
        scale = min(self.height / height, self.width / width)
        return int(height * scale), int(width * scale)

    def within(self, pixels: int) -> Iterator["SizeLimit"]:
        """The boxes of at most `pixels` in this one, the highest first; none is inside another."""
        cells = pixels // self.patch**2
        for rows in range(min(self.height // self.patch, cells), 0, -1):
            columns = min(self.width // self.patch, cells // rows)
            yield SizeLimit(height=rows * self.patch, width=columns * self.patch, patch=self.patch)

    def grid(self, height: int, width: int) -> tuple[int, int, int]:
        """(1, rows, columns) of patches that a picture takes; those at its far edges may be part of it."""
        return 1, math.ceil(height / self.patch), math.ceil(width / self.patch)


def published_box(checkpoint: Checkpoint) -> SizeLimit:
    """By what the checkpoint says of pictures. Raises CheckpointError for a box that is not of whole patches."""
    file = checkpoint.section("image_processor")
    size, patches = file.child("size"), file.child("patch_size")
    patch = checkpoint.config.count("patch_size", PATCH)
    for key in ("height", "width"):
        patches.expect(key, (patch,), PATCH)
    box = SizeLimit(height=size.count("height", 1080), width=size.count("width", 1920), patch=patch)
    if min(box.height, box.width) < patch or box.height % patch or box.width % patch:
        raise CheckpointError(f"{size.location}: {box.height} x {box.width} is not whole patches of {patch}")
    return box


def sized(height: int, width: int, box: SizeLimit, pixels: int) -> tuple[int, int]:
    """(height, width) of a picture in the box whose patches have at most `pixels`: the largest, keeping its shape.

    Raises ValueError for a picture so narrow that nothing of it is left, and where not one patch is allowed.
    """
    whole = box.fitted(height, width)
    _, rows, columns = box.grid(*whole)
    if rows * columns * box.patch**2 > pixels:
        whole = max((smaller.fitted(height, width) for smaller in box.within(pixels)), default=(0, 0))
    if min(whole) < 1:
        raise ValueError(f"a picture of {width} x {height} pixels has no place in {pixels} pixels of the model's")
    return whole


def largest_grid(box: SizeLimit, pixels: int, tokens: int) -> tuple[int, int, int] | None:
    """(1, rows, columns) of the picture of most patches; each of its rows has one token more than patches."""
    found = [
        (rows, min(smaller.width // box.patch, tokens // rows - 1))
        for smaller in box.within(pixels)
        for rows in [smaller.height // box.patch]
    ]
    rows, columns = max(found, key=lambda grid: grid[0] * grid[1], default=(0, 0))
    return (1, rows, columns) if columns > 0 else None


def pixel_bounds(checkpoint: Checkpoint) -> PixelBounds:
    box = published_box(checkpoint)
    return PixelBounds(image=box.height * box.width, frame=box.height * box.width, token=box.patch**2)
