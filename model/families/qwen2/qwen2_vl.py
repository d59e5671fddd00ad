"""Qwen2-VL: every temporal grid of a video is one step in time; a plain tower that sees whole grids."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.qwen2.processor import QwenPrompt, mark_ids, pad_ids
from model.family import Family

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.net.rope_vit import QwenVitSpec
    from model.ops.base import Ops
    from model.weights import Weights


class Qwen2VLPrompt(QwenPrompt):
    """How Qwen2-VL reads a chat: satisfies tokenization.processor.Prompt."""

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """`max_pixels` is the server's cap on one image after resizing. Raises CheckpointError."""
        super().__init__(checkpoint, max_pixels, family="qwen2_vl")


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose vision tower and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.families.qwen2.recipe import Senses, build_qwen_lm, tied_anywhere
    from model.net.rope_vit import build_qwen_vit

    config = checkpoint.config
    senses = Senses(
        encoders=build_qwen_vit(ops, weights, _vision_spec(checkpoint), "visual."),
        pads=pad_ids(config),
        marks=mark_ids(config),
    )
    return build_qwen_lm(config, weights, ops, senses, tied=tied_anywhere(config))


def _vision_spec(checkpoint: Checkpoint) -> "QwenVitSpec":
    """Defaults are those of the published configuration class."""
    from model.families.qwen2.recipe import decoder_spec, pixel_spec, vision_facts
    from model.net.rope_vit import QwenVitSpec

    vision, hidden = vision_facts(checkpoint.config), decoder_spec(checkpoint.config).hidden
    vision.expect("hidden_act", ("quick_gelu",), "quick_gelu")
    vision.expect("hidden_size", (hidden,), 3584)
    width = vision.read(int, "embed_dim", 1280)
    return QwenVitSpec(
        width=width,
        depth=vision.read(int, "depth", 32),
        heads=vision.read(int, "num_heads", 16),
        inter=int(width * vision.read(float, "mlp_ratio", 4.0)),
        patch=vision.read(int, "patch_size", 14),
        merge=vision.read(int, "spatial_merge_size", 2),
        out=hidden,
        pixels=pixel_spec(checkpoint),
    )


RENAMES = {  # transformers 5 on disk -> the hub's names, which `build` uses
    "model.visual.": "visual.",
    "model.language_model.": "model.",
}


FAMILY = Family(name="qwen2_vl", prompt=Qwen2VLPrompt, build=build, renames=RENAMES)
