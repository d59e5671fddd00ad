"""Pictures of a model that resizes all of them to one size."""

from dataclasses import dataclass, replace

import numpy as np

from configs.checkpoint import REQUIRED, CheckpointError, ConfigSection
from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat
from tokenization.chat.rendering import MEDIA
from tokenization.media.smart_resize import MAX_ASPECT
from tokenization.media.source import Source
from tokenization.processor import Measure, MediaHandler, StageClock

MOST_PATCHES = 128  # along a side; published towers have up to 40


def read_sides(vision: ConfigSection, *, size: int | None = None, patch: int | None = None) -> tuple[int, int]:
    """Of each picture in patches, and of a patch in pixels. size, patch: defaults in pixels; None: there is none.

    Raises CheckpointError.
    """
    pixels = vision.count("image_size", REQUIRED if size is None else size)
    one = vision.count("patch_size", REQUIRED if patch is None else patch)
    if not 1 <= pixels // one <= MOST_PATCHES:
        raise CheckpointError(
            f"{vision.location}: image_size {pixels} is not 1 to {MOST_PATCHES} times patch_size {one}"
        )
    return pixels // one, one


@dataclass(frozen=True, kw_only=True)
class FixedPictures(MediaHandler):
    side: int  # of every picture in patches
    patch: int  # side of a patch in pixels
    n_tokens: int  # of every picture
    edge: int | None = None  # pixels of the shorter edge, before the square in its centre is cut out; None: all is seen
    on_white: bool = True  # what is transparent is seen on white, else as the format's colours alone have it
    origin: str = ""

    @property
    def pixels(self) -> int:
        """The side of every picture in pixels."""
        return self.side * self.patch

    def refuse_bounds(self, chat: Chat) -> None:
        """Raises ChatError where a request bounds the pixels of all its media."""
        if chat.media and chat.media_options.bounds_pixels:
            size = f"{self.pixels} x {self.pixels}"
            raise ChatError(f"{MEDIA}: this model sees every picture at {size}: no bounds are taken", MEDIA)

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [side * side, 3 * patch * patch].

        Raises ChatError for a damaged header, for bounds on pixels, and for a strip that would grow before it is cut.
        """
        if source.options.bounds_pixels:
            size = f"{self.pixels} x {self.pixels}"
            message = f"this model sees every picture at {size}: it takes no min_pixels or max_pixels"
            raise ChatError(message)
        from tokenization.media.image import read_header

        header = read_header(source.data, max_source_pixels=limits.max_source_pixels)
        sent = header.width, header.height
        if self.edge is not None and max(sent) > MAX_ASPECT * min(sent):
            raise ChatError(f"the image cannot be used: one side is more than {MAX_ASPECT} times the other")
        return replace(self._picture, size=sent)

    def largest(self, limits: MediaConfig, max_tokens: int) -> Measure | None:
        """The one there is, where a prompt of `max_tokens` holds it."""
        return self._picture if max_tokens >= self.n_tokens else None

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """uint8 [side * side, 3 * patch * patch], patches row by row, columns (channel, y, x)."""
        from tokenization.media.image import cover, decode, to_patches

        with clock.stage("decode", measure.kind):
            most = limits.max_source_pixels
            picture = decode(source.data, max_source_pixels=most, on_white=self.on_white, check=source.check)
        with clock.stage("resize", measure.kind):
            if self.edge is None:
                image = picture.resized(width=self.pixels, height=self.pixels)
            else:
                image = cover(picture, edge=self.edge, side=self.pixels)
        with clock.stage("patch", measure.kind):
            return to_patches(image, patch=self.patch, merge=1)

    @property
    def _picture(self) -> Measure:
        shape = (self.side**2, 3 * self.patch**2)
        grid, resized = (1, self.side, self.side), (self.pixels, self.pixels)
        return Measure(kind="image", grid=grid, shape=shape, n_tokens=self.n_tokens, resized=resized)
