"""Qwen-VL, and Qwen without a vision tower: the record by which the registry finds them."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.qwen_vl.processor import QwenVLProcessor
from model.family import Family

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose tower, resampler and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.qwen_vl import recipe

    return recipe.build(checkpoint, weights, ops)


FAMILY = Family(
    name="qwen_vl",
    models="Qwen-VL, Qwen-VL-Chat; without `visual` in config.json Qwen, Qwen-Chat (first generation), text only",
    processor=QwenVLProcessor,
    build=build,
    renames={},
)
