"""The record of a model family: all that it declares of itself, its processor, its networks, its tensor names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from configs.serve import Device
from tokenization.chat.parts import Kind
from tokenization.media.frame_sampling import TOTAL_PIXELS
from tokenization.processor import Feature, Modality, Processor
from tokenization.template_proof import prove_placeholders

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


BOUNDS: Mapping[str, str] = {  # the setting that decides the largest item of a kind, where the model has no one size
    "image": "--max-pixels",
    "video": "--max-video-pixels",
    "audio": "--max-audio-seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelBounds:
    """The most pixels after resizing that a checkpoint itself asks for."""

    image: int
    frame: int  # of a video
    token: int  # pixels of one token
    video: int | None = TOTAL_PIXELS  # of all temporal grids of a video together; None: its frames have one size
    tiled: bool = False  # pictures are cut into tiles, of which a lower bound takes some away


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcription:
    """How a model that hears is asked for the words of a sound."""

    prompt: str
    system: str = ""  # empty: none


def whole_config(checkpoint: Checkpoint) -> ConfigSection:
    return checkpoint.config


def no_pixels(checkpoint: Checkpoint) -> PixelBounds | None:
    """The bounds of a model that sees nothing, or whose pictures all have one size."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family, declared: the registry names the module, and nothing else in the tree knows more of it than this.

    What its largest items are depends on the checkpoint and on settings: `Processor.largest` says it.
    """

    name: str
    models: str  # published models that it serves, for people
    devices: tuple[Device, ...] = ("cpu", "cuda", "npu")  # where its operators are proven; of NPUs by tests/npu
    processor: type[Processor]
    build: "Callable[[Checkpoint, Weights, Ops], MultimodalLM]"
    renames: Mapping[str, str]  # prefix on disk -> prefix that build() asks for, longest first
    skips: tuple[str, ...] = ()  # prefixes on disk of parts that are not served; their tensors are never read
    pixels: Callable[[Checkpoint], PixelBounds | None] = no_pixels
    transcription: Transcription | None = None  # of one that hears
    config: Callable[[Checkpoint], ConfigSection] = whole_config  # where in config.json the model that is served stands

    @property
    def modalities(self) -> Mapping[Kind, Modality]:
        """Kinds of media that the family takes. A checkpoint may lack one: its processor says so."""
        return self.processor.modalities

    @property
    def features(self) -> frozenset[Feature]:
        """What the family can do besides, of the features that differ. A checkpoint may lack one."""
        return self.processor.features

    def check_device(self, kind: str) -> None:
        """Raises CheckpointError for a kind of device that it is not proven on; the message names the others."""
        if kind not in self.devices:
            served = ", ".join(self.devices)
            raise CheckpointError(f"--device {kind}: the family {self.name} is not served there (it is on {served})")

    def host(self, checkpoint: Checkpoint, max_pixels: int) -> Processor:
        """The processor, once its prompts are proven to have a place for each kind of medium. Raises CheckpointError.

        max_pixels: the server's cap on pixels of one image.
        """
        found = self.processor(checkpoint, max_pixels)
        prove_placeholders(found)
        return found
