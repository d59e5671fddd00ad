"""Qwen2-VL: every temporal grid of a video is one step in time; a plain tower that sees whole grids."""

from typing import TYPE_CHECKING

from configs.checkpoint import Checkpoint
from model.families.qwen2.processor import Qwen2Processor
from model.family import Family
from model.grids.bounds import pixel_bounds
from model.media_tokens import vision_tokens

if TYPE_CHECKING:
    from model.net.multimodal import MultimodalLM
    from model.net.rope_vit import RopeVitSpec
    from model.ops.base import Ops
    from model.weights import Weights


def build(checkpoint: Checkpoint, weights: "Weights", ops: "Ops") -> "MultimodalLM":
    """Compose vision tower and decoder. Raises CheckpointError for what is missing, left over or not supported."""
    from model.composition import MediaEncoders
    from model.families.qwen2.recipe import PLAIN_NAMES, build_language_model, tied_anywhere
    from model.net.rope_vit import build_rope_vit

    config = checkpoint.config
    media_encoders = MediaEncoders(
        encoders=build_rope_vit(ops, weights, _vision_spec(checkpoint), "visual.", PLAIN_NAMES),
        tokens=vision_tokens(checkpoint),
    )
    return build_language_model(config, weights, ops, media_encoders, tied=tied_anywhere(config))


def _vision_spec(checkpoint: Checkpoint) -> "RopeVitSpec":
    """Defaults are those of the published configuration class."""
    from model.families.qwen2.recipe import decoder_spec, pixel_specs, vision_config
    from model.net.rope_vit import RopeVitSpec
    from model.net.vision import BlockSpec

    vision, hidden = vision_config(checkpoint.config), decoder_spec(checkpoint.config).hidden
    vision.expect("hidden_act", ("quick_gelu",), "quick_gelu")
    vision.expect("hidden_size", (hidden,), 3584)
    width = vision.count("embed_dim", 1280)
    return RopeVitSpec(
        block=BlockSpec(
            width=width,
            heads=vision.count("num_heads", 16),
            inter=int(width * vision.positive("mlp_ratio", 4.0)),
            eps=1e-6,
            activation="quick_gelu",
        ),
        depth=vision.count("depth", 32),
        patch=vision.count("patch_size", 14),
        merge=vision.count("spatial_merge_size", 2),
        out=hidden,
        pixels=pixel_specs(checkpoint),
    )


RENAMES = {  # transformers 5 on disk -> the hub's names, which `build` uses
    "model.visual.": "visual.",
    "model.language_model.": "model.",
}


FAMILY = Family(
    name="qwen2_vl",
    models="Qwen2-VL, all sizes",
    processor=Qwen2Processor,
    build=build,
    renames=RENAMES,
    pixels=pixel_bounds,
)
