"""Qwen3-VL, dense: the record by which the registry finds it."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.qwen3_vl.processor import Qwen3VLProcessor, pixel_bounds
from model.family import Family

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose tower and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.qwen3_vl import recipe

    return recipe.build(checkpoint, weights, ops)


RENAMES = {  # on disk, on the hub as after transformers 5 -> the names that `build` uses
    "model.visual.": "visual.",
    "model.language_model.": "model.",
}


FAMILY = Family(
    name="qwen3_vl",
    models="Qwen3-VL, dense (2B to 32B)",
    processor=Qwen3VLProcessor,
    build=build,
    renames=RENAMES,
    pixels=pixel_bounds,
)
