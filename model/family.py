"""The record of a model family: its processor, how its networks are built, its tensor names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint, ConfigSection
from tokenization.pads import prove_pads
from tokenization.processor import Processor

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelBounds:
    """The most pixels after resizing that a checkpoint itself asks for."""

    image: int
    frame: int  # of a video
    token: int  # pixels of one token


def whole_config(checkpoint: Checkpoint) -> ConfigSection:
    return checkpoint.config


def no_pixels(checkpoint: Checkpoint) -> PixelBounds | None:
    """Nothing is seen, or every picture has one size."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    name: str
    processor: Callable[[Checkpoint, int], Processor]  # checkpoint, the server's cap on pixels of one image
    build: "Callable[[Checkpoint, Weights, Ops], MultimodalLM]"
    renames: Mapping[str, str]  # prefix on disk -> prefix that build() asks for, longest first
    skips: tuple[str, ...] = ()  # prefixes on disk of parts that are not served; their tensors are never read
    pixels: Callable[[Checkpoint], PixelBounds | None] = no_pixels
    config: Callable[[Checkpoint], ConfigSection] = whole_config  # where in config.json the model that is served stands

    def host(self, checkpoint: Checkpoint, max_pixels: int) -> Processor:
        """The processor, once its prompts are proven to have a place for each kind of medium. Raises CheckpointError.

        max_pixels: the server's cap on pixels of one image.
        """
        found = self.processor(checkpoint, max_pixels)
        prove_pads(found)
        return found
