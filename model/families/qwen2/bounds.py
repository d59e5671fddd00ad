"""How large a picture and a frame may be, and which frames are looked at, by what a checkpoint says of them."""

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from model.family import PixelBounds
from tokenization.media.frame_sampling import PUBLISHED, FrameRules


def frame_rules(checkpoint: Checkpoint) -> FrameRules:
    """By what the checkpoint says of videos. Raises CheckpointError for bounds that no frame can keep."""
    file = checkpoint.section("video_processor")
    size = file.child("size")
    fewest = size.read(int, "shortest_edge", size.read(int, "min_pixels", PUBLISHED.min_pixels))
    most = size.read(int, "longest_edge", size.read(int, "max_pixels", PUBLISHED.max_pixels))
    most = file.read(int, "max_pixels", most)
    rules = FrameRules(
        fps=file.read(float, "fps", PUBLISHED.fps),
        min_frames=file.read(int, "min_frames", PUBLISHED.min_frames),
        max_frames=file.read(int, "max_frames", PUBLISHED.max_frames),
        min_pixels=min(file.read(int, "min_pixels", fewest), most),
        max_pixels=most,
    )
    if not (rules.fps > 0 and rules.min_pixels > 0 and 1 <= rules.min_frames <= rules.max_frames):
        said = ", ".join(f"{key} {getattr(rules, key)}" for key in rules.__struct_fields__)
        raise CheckpointError(f"{file.location}: no video fits {said}")
    return rules


def image_bounds(checkpoint: Checkpoint) -> tuple[int, int]:
    """(fewest, most) pixels of a resized image, by what the checkpoint says of pictures."""
    file = checkpoint.section("image_processor")
    size = file.child("size")
    fewest = size.read(int, "shortest_edge", size.read(int, "min_pixels", 56 * 56))
    most = size.read(int, "longest_edge", size.read(int, "max_pixels", 28 * 28 * 1280))
    most = file.read(int, "max_pixels", most)
    return min(file.read(int, "min_pixels", fewest), most), most


def pixel_bounds(
    checkpoint: Checkpoint, config: ConfigSection | None = None, frames: FrameRules | None = None
) -> PixelBounds:
    """What the checkpoint's own files allow a picture and a frame. config, frames: as of `Qwen2Processor`."""
    vision = (config or checkpoint.config).child("vision_config")
    frames = frame_rules(checkpoint) if frames is None else frames
    side = vision.read(int, "patch_size", 14) * vision.read(int, "spatial_merge_size", 2)
    return PixelBounds(image=image_bounds(checkpoint)[1], frame=frames.max_pixels, token=side**2)
