"""Pictures of a model that scales large ones down and enlarges none."""

from abc import abstractmethod
from dataclasses import dataclass

from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError
from tokenization.chat.options import LOW_DETAIL_PIXELS, MediaOptions
from tokenization.chat.parts import Chat
from tokenization.chat.rendering import MEDIA
from tokenization.media.frame_sampling import UNBOUNDED
from tokenization.media.source import Source
from tokenization.messages import Reduced
from tokenization.processor import MediaHandler

_NOT_ENLARGED = "this model enlarges no picture: it takes no min_pixels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a header says of a picture, and at what size the model sees it."""

    height: int  # resized
    width: int
    size: tuple[int, int]  # as sent, (width, height)
    reduced: Reduced | None


class ShrunkPictures(MediaHandler):
    def __init__(self, cap: int, origin: str) -> None:
        """cap: the server's, on the pixels of a resized picture."""
        self.cap, self.origin = cap, origin

    @abstractmethod
    def sized(self, height: int, width: int, pixels: int) -> tuple[int, int]:
        """(height, width) within so many pixels. Raises ValueError for a picture that has no place in them."""

    def refuse_bounds(self, chat: Chat) -> None:
        """Raises ChatError where a request says to what size all its pictures would be enlarged."""
        if chat.media_options.min_pixels is not None:
            raise ChatError(f"{MEDIA}.min_pixels: {_NOT_ENLARGED}", f"{MEDIA}.min_pixels")

    def see(self, source: Source, limits: MediaConfig) -> Seen:
        """Raises ChatError for a damaged header, for min_pixels, and for a picture that is too narrow."""
        if source.options.min_pixels is not None:
            raise ChatError(_NOT_ENLARGED)
        from tokenization.media.image import read_header

        header = read_header(source.data, max_source_pixels=limits.max_source_pixels)
        try:
            found = self.resized(header.height, header.width, source.options)
            wanted = self.resized(header.height, header.width, source.options, UNBOUNDED)
        except ValueError as error:
            raise ChatError(f"the image cannot be used: {error}") from None
        reduced = None if found == wanted else Reduced(limit="max_pixels", size=found[::-1], wanted=wanted[::-1])
        return Seen(height=found[0], width=found[1], size=(header.width, header.height), reduced=reduced)

    def resized(self, height: int, width: int, options: MediaOptions, cap: int | None = None) -> tuple[int, int]:
        """(height, width), by the request's bound under `cap`, else the server's. Raises ValueError as `sized` does."""
        cap = self.cap if cap is None else cap
        most = min(cap, options.max_pixels or cap)
        return self.sized(height, width, min(most, LOW_DETAIL_PIXELS) if options.low_detail else most)
