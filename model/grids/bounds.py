"""How large a picture and a frame may be, and which frames are looked at, by what a checkpoint says of them."""

import msgspec

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from model.family import PixelBounds
from tokenization.media.frame_sampling import PUBLISHED, FrameRules


def frame_rules(checkpoint: Checkpoint, published: FrameRules = PUBLISHED) -> FrameRules:
    """By what the checkpoint says of videos, else the class's. Raises CheckpointError for what no frame can keep."""
    file = checkpoint.section("video_processor")
    size = file.child("size")
    fewest = size.count("shortest_edge", size.count("min_pixels", published.min_pixels))
    most = size.count("longest_edge", size.count("max_pixels", published.max_pixels))
    most = file.count("max_pixels", most)
    rules = msgspec.structs.replace(
        published,
        fps=file.positive("fps", published.fps),
        min_frames=file.count("min_frames", published.min_frames),
        max_frames=file.count("max_frames", published.max_frames),
        min_pixels=min(file.count("min_pixels", fewest), most),
        max_pixels=most,
    )
    if rules.min_frames > rules.max_frames:
        said = ", ".join(f"{key} {getattr(rules, key)}" for key in rules.__struct_fields__)
        raise CheckpointError(f"{file.location}: no video fits {said}")
    return rules


def image_bounds(checkpoint: Checkpoint) -> tuple[int, int]:
    """(fewest, most) pixels of a resized image, by what the checkpoint says of pictures."""
    file = checkpoint.section("image_processor")
    size = file.child("size")
    fewest = size.count("shortest_edge", size.count("min_pixels", 56 * 56))
    most = size.count("longest_edge", size.count("max_pixels", 28 * 28 * 1280))
    most = file.count("max_pixels", most)
    return min(file.count("min_pixels", fewest), most), most


def pixel_bounds(
    checkpoint: Checkpoint, config: ConfigSection | None = None, frames: FrameRules | None = None
) -> PixelBounds:
    """What the checkpoint's own files allow a picture and a frame.

    config: the model's own keys, None: config.json; frames: None: `frame_rules`.
    """
    vision = (config or checkpoint.config).child("vision_config")
    frames = frame_rules(checkpoint) if frames is None else frames
    side = vision.count("patch_size", 14) * vision.count("spatial_merge_size", 2)
    return PixelBounds(image=image_bounds(checkpoint)[1], frame=frames.max_pixels, token=side**2)
