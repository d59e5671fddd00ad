"""What a checkpoint says of pictures: patches, tokens and the id that stands for one."""

from configs.checkpoint import Checkpoint, ConfigSection
from model.media_tokens import MediaTokens, read_media_tokens
from tokenization.fixed_pictures import FixedPictures, read_sides

_WHOLE = {  # what holds where config.json has no vision_config at all; else CLIP's own class fills the gaps
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14,
}  # fmt: skip
_GAPS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32,
}  # fmt: skip


def vision_config(config: ConfigSection) -> ConfigSection:
    """The tower's keys with the classes' defaults. Raises CheckpointError for another kind of tower."""
    vision = config.child("vision_config")
    found = vision.merged(ConfigSection(_GAPS if vision else _WHOLE, vision.location))
    found.expect("model_type", ("clip_vision_model",), "clip_vision_model")
    found.expect("num_channels", (3,), 3)
    return found


def shows_class(config: ConfigSection) -> bool:
    """Whether the class token goes on to the decoder, before the patches."""
    key = "vision_feature_select_strategy"
    config.expect(key, ("default", "full"), "default")
    return config.read(str, key, "default") == "full"


def picture_tokens(checkpoint: Checkpoint) -> MediaTokens:
    keys = ("image_token_index", "image_token_id")
    return read_media_tokens(checkpoint, checkpoint.config, {"image": (keys, 32000)}, {})


def pictures_of(config: ConfigSection) -> FixedPictures:
    """By the tower: what old processor files lack, and what newer ones repeat."""
    vision = vision_config(config)
    side, patch = read_sides(vision)
    return FixedPictures(side=side, patch=patch, n_tokens=side**2 + shows_class(config))
