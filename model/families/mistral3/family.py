"""Mistral Small 3.1: the record by which the registry finds it."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.mistral3.processor import Mistral3Processor
from model.families.mistral3.sizes import pixel_bounds
from model.family import Family

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose tower, projector and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.mistral3 import recipe

    return recipe.build(checkpoint, weights, ops)


RENAMES = {  # hub, and transformers 5, on disk -> the names that `build` uses
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}


FAMILY = Family(
    name="mistral3",
    models="Mistral Small 3.1",
    processor=Mistral3Processor,
    build=build,
    renames=RENAMES,
    pixels=pixel_bounds,
)
