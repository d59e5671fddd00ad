"""Qwen2.5-VL: videos keep time in seconds; a gated tower most of whose blocks see windows."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint, CheckpointError
from model.family import Family
from tokenization.prompt import Prompt
from tokenization.qwen_prompt import QwenPrompt

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.net.qwen_vit import QwenVitSpec
    from model.ops.base import Ops
    from model.weights import Weights

FULL_BLOCKS = [7, 15, 23, 31]


class Qwen25VLPrompt(QwenPrompt):
    """How Qwen2.5-VL reads a chat: satisfies tokenization.prompt.Prompt."""

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """`max_pixels` is the server's cap on one image after resizing. Raises CheckpointError."""
        rate = checkpoint.config.child("vision_config").read(float, "tokens_per_second", 4.0)
        super().__init__(checkpoint, max_pixels, family="qwen2_5_vl", tokens_per_second=rate)


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose vision tower and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.net.qwen_lm import build_qwen_lm

    return build_qwen_lm(checkpoint, weights, ops, _vision_spec(checkpoint))


def _vision_spec(checkpoint: Checkpoint) -> "QwenVitSpec":
    """Defaults are those of the published configuration class."""
    from model.net.qwen_lm import decoder_spec, pixel_spec, vision_facts
    from model.net.qwen_vit import QwenVitSpec

    vision, hidden = vision_facts(checkpoint), decoder_spec(checkpoint).hidden
    vision.expect("hidden_act", ("silu",), "silu")
    vision.expect("out_hidden_size", (hidden,), 3584)
    patch, merge = vision.read(int, "patch_size", 14), vision.read(int, "spatial_merge_size", 2)
    window, depth = vision.read(int, "window_size", 112), vision.read(int, "depth", 32)
    full = vision.read(list, "fullatt_block_indexes", FULL_BLOCKS)
    if window < patch * merge:
        raise CheckpointError(f"{vision.where}: window_size {window} is less than a token of {patch * merge} pixels")
    if not all(isinstance(i, int) and 0 <= i < depth for i in full):
        raise CheckpointError(f"{vision.where}: fullatt_block_indexes {full} are not blocks of {depth}")
    return QwenVitSpec(
        width=vision.read(int, "hidden_size", 3584),
        depth=depth,
        heads=vision.read(int, "num_heads", 16),
        inter=vision.read(int, "intermediate_size", 3420),
        patch=patch,
        merge=merge,
        out=hidden,
        pixels=pixel_spec(checkpoint),
        blocks="gated",
        window=window // patch // merge,
        full_blocks=frozenset(full),
    )


RENAMES = {  # transformers 5 on disk -> the hub's names, which `build` uses
    "model.visual.": "visual.",
    "model.language_model.": "model.",
}


def prompt(checkpoint: Checkpoint, max_pixels: int) -> Prompt:
    """The host half of this checkpoint; `max_pixels` is the server's cap on one image."""
    return Qwen25VLPrompt(checkpoint, max_pixels)


FAMILY = Family(name="qwen2_5_vl", prompt=prompt, build=build, renames=RENAMES)
