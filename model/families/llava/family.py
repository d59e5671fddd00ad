"""LLaVA-1.5: the record by which the registry finds it."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.llava.processor import LlavaProcessor
from model.family import Family

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose tower, projector and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.llava import recipe

    return recipe.build(checkpoint, weights, ops)


RENAMES = {  # hub, and transformers 5 and its saves, on disk -> the names that `build` uses
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "vision_tower.vision_model.": "vision_tower.",
    "model.language_model.": "model.",
    "model.vision_tower.vision_model.": "vision_tower.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}


FAMILY = Family(
    name="llava",
    models="LLaVA-1.5, all sizes",
    processor=LlavaProcessor,
    build=build,
    renames=RENAMES,
)
