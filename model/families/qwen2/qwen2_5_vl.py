"""Qwen2.5-VL: videos keep time in seconds; a gated tower most of whose blocks see windows."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.qwen2.processor import QwenPrompt, mark_ids, pad_ids
from model.family import Family

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.ops.base import Ops
    from model.weights import Weights


class Qwen25VLPrompt(QwenPrompt):
    """How Qwen2.5-VL reads a chat: satisfies tokenization.processor.Prompt."""

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """`max_pixels` is the server's cap on one image after resizing. Raises CheckpointError."""
        rate = checkpoint.config.child("vision_config").read(float, "tokens_per_second", 4.0)
        super().__init__(checkpoint, max_pixels, family="qwen2_5_vl", tokens_per_second=rate)


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose vision tower and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.qwen2.recipe import (
        Senses,
        build_qwen_lm,
        decoder_spec,
        pixel_spec,
        tied_anywhere,
        windowed_tower,
    )
    from model.net.rope_vit import build_qwen_vit

    config = checkpoint.config
    tower = windowed_tower(config, pixel_spec(checkpoint), decoder_spec(config).hidden, ("attn.qkv",))
    senses = Senses(
        encoders=build_qwen_vit(ops, weights, tower, "visual."),
        pads=pad_ids(config),
        marks=mark_ids(config),
    )
    return build_qwen_lm(config, weights, ops, senses, tied=tied_anywhere(config))


RENAMES = {  # transformers 5 on disk -> the hub's names, which `build` uses
    "model.visual.": "visual.",
    "model.language_model.": "model.",
}


FAMILY = Family(name="qwen2_5_vl", prompt=Qwen25VLPrompt, build=build, renames=RENAMES)
