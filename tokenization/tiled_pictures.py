"""Pictures of a model that cuts large ones into tiles of one size, and shows it all of them in one tile more."""

from dataclasses import dataclass

import numpy as np

from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError
from tokenization.chat.options import LOW_DETAIL_PIXELS, MOST_TILES, MediaOptions
from tokenization.chat.parts import Chat
from tokenization.chat.rendering import MEDIA
from tokenization.media.frame_sampling import UNBOUNDED
from tokenization.media.source import Source
from tokenization.messages import Reduced
from tokenization.processor import Measure, MediaHandler, StageClock


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSize:
    side: int  # of a tile in patches
    patch: int  # side of a patch in pixels
    merge: int  # side of a token in patches

    @property
    def pixels(self) -> int:
        """The side of a tile in pixels."""
        return self.side * self.patch

    @property
    def tokens(self) -> int:
        """Of one tile."""
        return (self.side // self.merge) ** 2

    def shape(self, n: int) -> tuple[int, int]:
        """Of the array of `n` tiles."""
        return (n * self.side**2, 3 * self.patch**2)


def tile_grid(width: int, height: int, pixels: int, most: int) -> tuple[int, int]:
    """(columns, rows) of the grid of at most `most` tiles whose shape is nearest to the picture's.

    Of equally near ones that with more tiles, as long as it is less than twice as large as the picture. In this order,
    as transformers' get_optimal_tiled_canvas. pixels: the side of a tile.
    """
    grids = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
    best, nearest = (1, 1), float("inf")
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        off = abs(width / height - columns / rows)
        if off < nearest or (off == nearest and width * height > 0.5 * pixels * pixels * columns * rows):
            best, nearest = (columns, rows), off
    return best


@dataclass(frozen=True, kw_only=True)
class TiledPictures(MediaHandler):
    tile: TileSize
    cap: int  # the server's, on the pixels of a picture's tiles together, without the one that shows all of it
    most: int  # tiles, where the request does not say
    thumbnail: bool = True  # behind several tiles there is one that shows all of the picture
    on_white: bool = True  # what is transparent is seen on white, else as the format's colours alone have it
    origin: str = ""

    @property
    def _area(self) -> int:
        return self.tile.pixels**2

    def refuse_bounds(self, chat: Chat) -> None:
        """Raises ChatError where a request bounds its pictures by a minimum, or by less than a tile."""
        if chat.media and (refusal := self._refusal(chat.media_options)):
            field, why = refusal
            raise ChatError(f"{MEDIA}.{field}: {why}", f"{MEDIA}.{field}")

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [tiles * side^2, 3 * patch^2], grid (tiles, side, side). Raises ChatError, also for such bounds."""
        if refusal := self._refusal(source.options):
            raise ChatError(": ".join(refusal))
        from tokenization.media.image import read_header

        header = read_header(source.data, max_source_pixels=limits.max_source_pixels)
        size = header.width, header.height
        found = tile_grid(*size, self.tile.pixels, self._most(source.options, self.cap))
        wanted = tile_grid(*size, self.tile.pixels, self._most(source.options, UNBOUNDED))
        reduced = None
        if found != wanted:
            seen, whole = self._in_pixels(found), self._in_pixels(wanted)
            reduced = Reduced(limit="max_pixels", size=seen, wanted=whole)
        return self._measure(found, size, reduced)

    def largest(self, limits: MediaConfig, max_tokens: int) -> Measure | None:
        """The picture of most tiles that a request may ask for, and that `max_tokens` hold."""
        n = min(MOST_TILES, max(1, self.cap // self._area))
        while n and self._n_seen(n) * self.tile.tokens > max_tokens:
            n -= 1
        return self._measure((n, 1)) if n else None

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """uint8, tile by tile, token by token in each, columns (channel, y, x); the whole picture comes last."""
        from tokenization.media.image import decode, to_patches

        assert measure.resized is not None
        side, (height, width) = self.tile.pixels, measure.resized
        with clock.stage("decode", measure.kind):
            most = limits.max_source_pixels
            picture = decode(source.data, max_source_pixels=most, on_white=self.on_white, check=source.check)
        with clock.stage("resize", measure.kind):
            image = picture.resized(width=width, height=height)
            corners = [(left, top) for top in range(0, height, side) for left in range(0, width, side)]
            tiles = [image.crop((left, top, left + side, top + side)) for left, top in corners]
            if len(tiles) < measure.grid[0]:
                tiles.append(picture.resized(width=side, height=side))
        with clock.stage("patch", measure.kind):
            return np.concatenate([to_patches(tile, patch=self.tile.patch, merge=self.tile.merge) for tile in tiles])

    def _refusal(self, options: MediaOptions) -> tuple[str, str] | None:
        """Field and reason."""
        if options.min_pixels is not None and options.min_pixels > self._area:
            return "min_pixels", "this model chooses its tiles by a picture's shape: it takes no minimum above one tile"
        if options.max_pixels is not None and options.max_pixels < self._area:
            side = self.tile.pixels
            return "max_pixels", f"this model sees tiles of {side} x {side} = {self._area} pixels, and at least one"
        return None

    def _most(self, options: MediaOptions, cap: int) -> int:
        """Tiles, by the request under `cap`."""
        pixels = min(cap, options.max_pixels or cap)
        if options.low_detail:
            pixels = min(pixels, LOW_DETAIL_PIXELS)
        return min(options.max_dynamic_patch or self.most, MOST_TILES, max(1, pixels // self._area))

    def _in_pixels(self, grid: tuple[int, int]) -> tuple[int, int]:
        """(width, height) of (columns, rows) of tiles."""
        return grid[0] * self.tile.pixels, grid[1] * self.tile.pixels

    def _n_seen(self, n: int) -> int:
        """Tiles with that of the whole picture."""
        return n + (self.thumbnail and n > 1)

    def _measure(
        self, grid: tuple[int, int], size: tuple[int, int] | None = None, reduced: Reduced | None = None
    ) -> Measure:
        """grid: (columns, rows) of tiles; size: as sent, (width, height)."""
        columns, rows = grid
        n, side = self._n_seen(columns * rows), self.tile.side
        return Measure(
            kind="image", grid=(n, side, side), shape=self.tile.shape(n), n_tokens=n * self.tile.tokens, n_delimiters=2,
            size=size, reduced=reduced, resized=self._in_pixels(grid)[::-1],
        )  # fmt: skip
