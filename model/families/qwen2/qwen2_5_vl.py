"""Qwen2.5-VL: videos keep time in seconds; a gated tower most of whose blocks see windows."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.qwen2.processor import Qwen2Processor
from model.family import Family, PixelBounds
from model.grids.bounds import pixel_bounds
from model.media_tokens import vision_tokens
from tokenization.chat.parts import Kind
from tokenization.processor import Modality

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


class Qwen25VLProcessor(Qwen2Processor):
    modalities: Mapping[Kind, Modality] = {"image": Modality(positions="grid"), "video": Modality(positions="time")}

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels: the server's cap on one resized image. Raises CheckpointError."""
        super().__init__(checkpoint, max_pixels, tokens_per_second=tokens_per_second(checkpoint))


def tokens_per_second(checkpoint: Checkpoint) -> float:
    return checkpoint.config.child("vision_config").positive("tokens_per_second", 4.0)


def timed_pixel_bounds(checkpoint: Checkpoint) -> PixelBounds:
    """A plan opens no processor: what config.json says to one is looked at here as well."""
    tokens_per_second(checkpoint)
    return pixel_bounds(checkpoint)


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose vision tower and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.composition import MediaEncoders
    from model.families.qwen2.recipe import (
        GATED_NAMES,
        build_language_model,
        decoder_spec,
        pixel_specs,
        tied_anywhere,
        windowed_tower,
    )
    from model.net.rope_vit import build_rope_vit

    config = checkpoint.config
    tower = windowed_tower(config, pixel_specs(checkpoint), decoder_spec(config).hidden)
    media_encoders = MediaEncoders(
        encoders=build_rope_vit(ops, weights, tower, "visual.", GATED_NAMES),
        tokens=vision_tokens(checkpoint),
    )
    return build_language_model(config, weights, ops, media_encoders, tied=tied_anywhere(config))


RENAMES = {  # transformers 5 on disk -> the hub's names, which `build` uses
    "model.visual.": "visual.",
    "model.language_model.": "model.",
}


FAMILY = Family(
    name="qwen2_5_vl",
    models="Qwen2.5-VL, all sizes",
    processor=Qwen25VLProcessor,
    build=build,
    renames=RENAMES,
    pixels=timed_pixel_bounds,
)
