"""Pictures of a model that resizes all of them to one size."""

from dataclasses import dataclass, replace

from configs.checkpoint import REQUIRED, CheckpointError, ConfigSection
from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat
from tokenization.chat.rendering import MEDIA
from tokenization.media.source import Source
from tokenization.processor import Measure

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPictures:
    side: int  # of every picture in patches
    patch: int  # side of a patch in pixels
    n_tokens: int  # of every picture

    @property
    def pixels(self) -> int:
        """The side of every picture in pixels."""
        return self.side * self.patch

    def refuse_bounds(self, chat: Chat) -> None:
        """Raises ChatError where a request bounds the pixels of all its media."""
        said = chat.media_options
        if chat.media and (said.min_pixels is not None or said.max_pixels is not None):
            size = f"{self.pixels} x {self.pixels}"
            raise ChatError(f"{MEDIA}: this model sees every picture at {size}: no bounds are taken", MEDIA)

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [side * side, 3 * patch * patch]. Raises ChatError for a damaged header, and for bounds on pixels."""
        if source.options.min_pixels is not None or source.options.max_pixels is not None:
            size = f"{self.pixels} x {self.pixels}"
            message = f"this model sees every picture at {size}: it takes no min_pixels or max_pixels"
            raise ChatError(message)
        from tokenization.media.image import read_header

        header = read_header(source.data, max_source_pixels=limits.max_source_pixels)
        return replace(self._picture, size=(header.width, header.height))

    def largest(self, max_tokens: int) -> tuple[Measure, ...]:
        """The one there is, where a prompt of `max_tokens` holds it."""
        return (self._picture,) if max_tokens >= self.n_tokens else ()

    @property
    def _picture(self) -> Measure:
        shape = (self.side**2, 3 * self.patch**2)
        return Measure(kind="image", grid=(1, self.side, self.side), shape=shape, n_tokens=self.n_tokens)
