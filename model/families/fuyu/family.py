"""Fuyu: the record by which the registry finds it."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.fuyu.processor import FuyuProcessor
from model.families.fuyu.sizes import pixel_bounds
from model.family import Family

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose projection and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.fuyu import recipe

    return recipe.build(checkpoint, weights, ops)


RENAMES = {  # hub, and transformers 5, on disk -> the names that `build` uses
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.vision_embed_tokens.": "vision_embed_tokens.",
}


FAMILY = Family(
    name="fuyu",
    models="Fuyu-8B",
    processor=FuyuProcessor,
    build=build,
    renames=RENAMES,
    pixels=pixel_bounds,
)
