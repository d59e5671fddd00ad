"""InternVL2.5 and InternVL3: the record by which the registry finds them."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.internvl.processor import InternVLProcessor
from model.families.internvl.sizes import pixel_bounds, served_config
from model.family import Family

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose tower, projector and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.internvl import recipe

    return recipe.build(checkpoint, weights, ops)


RENAMES = {  # as published, as transformers saves it, and in transformers 5, on disk -> the names that `build` uses
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "vision_model.": "vision_tower.",
    "mlp1.": "multi_modal_projector.",
    "model.language_model.": "model.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}


FAMILY = Family(
    name="internvl",
    models="InternVL3 and InternVL2.5, but for the sizes on InternLM",
    processor=InternVLProcessor,
    build=build,
    renames=RENAMES,
    pixels=pixel_bounds,
    config=served_config,
)
