"""What a checkpoint says of its parts: in which of two layouts it lies, the ids of pictures, the size of a tile."""

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from model.family import PixelBounds
from model.media_tokens import MediaTokens, read_media_tokens
from tokenization.fixed_pictures import MOST_PATCHES
from tokenization.tiled_pictures import TileSize

MERGE = 2  # side of a token in patches: a downsample_ratio of 0.5
OPENING, CONTEXT, CLOSING, FILM = "<img>", "<IMG_CONTEXT>", "</img>", "<video>"
# Of the template "internvl2_5", which published directories have in Python.
SYSTEM = "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
_TEXT = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
}  # fmt: skip
_TOWER = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 448, "patch_size": 14, "layer_norm_eps": 1e-6, "norm_type": "layer_norm",
}  # fmt: skip


def as_published(checkpoint: Checkpoint) -> bool:
    """Whether the directory is as its makers publish it; else as transformers has it."""
    return "llm_config" in checkpoint.config


def text_section(checkpoint: Checkpoint) -> ConfigSection:
    """The decoder's keys with the class's defaults. Raises CheckpointError for another decoder, naming it."""
    config = checkpoint.config
    text = config.child("llm_config" if as_published(checkpoint) else "text_config")
    text.expect("model_type", ("qwen2",), "qwen2")
    return text.merged(ConfigSection(_TEXT, text.location))


def served_config(checkpoint: Checkpoint) -> ConfigSection:
    """Where the model's length stands. Published directories name another end of answers there than chats have."""
    if not as_published(checkpoint):
        return checkpoint.config
    text = text_section(checkpoint)
    length = text.count("max_position_embeddings")  # a dynamic rope_scaling counts only beyond it
    return ConfigSection({"max_position_embeddings": length}, text.location)


def vision_section(checkpoint: Checkpoint) -> ConfigSection:
    """The tower's keys. Raises CheckpointError for another kind of tower; published files name all that differs."""
    vision = checkpoint.config.child("vision_config")
    if as_published(checkpoint):
        vision.expect("model_type", ("intern_vit_6b",), "intern_vit_6b")  # of both towers
        return vision
    vision.expect("model_type", ("internvl_vision",), "internvl_vision")
    return vision.merged(ConfigSection(_TOWER, vision.location))


def picture_tokens(checkpoint: Checkpoint) -> MediaTokens:
    """Of pictures and frames alike. Raises CheckpointError where tokenizer.json lacks one."""
    default = CONTEXT if as_published(checkpoint) else 151667
    placed = (("image_token_id",), default)
    marks = {"start_image_token": OPENING, "end_image_token": CLOSING, "video_token": FILM}
    found = read_media_tokens(checkpoint, ConfigSection({}, "tokenizer.json"), {}, marks)
    for key, text in list(marks.items())[:2]:
        if key not in found.delimiters:
            raise CheckpointError(f"tokenizer.json has no added token {text!r}, which is the {key}")
    ids = read_media_tokens(checkpoint, checkpoint.config, {"image": placed, "video": placed}, {})
    return MediaTokens(placeholders=ids.placeholders, delimiters=found.delimiters, said={**found.said, **ids.said})


def tile_of(checkpoint: Checkpoint) -> TileSize:
    """Raises CheckpointError for tiles that the tower does not take, or that are no whole tokens."""
    config, vision = checkpoint.config, vision_section(checkpoint)
    config.expect("downsample_ratio", (1 / MERGE,), 1 / MERGE)
    pixels, patch = _side(vision, "image_size"), _side(vision, "patch_size")
    if as_published(checkpoint):
        config.expect("force_image_size", (pixels,), pixels)
        _expect_published(config)
    side = pixels // patch
    if not MERGE <= side <= MOST_PATCHES or side % MERGE:
        raise CheckpointError(f"{vision.location}: image_size {pixels} is no even number of patches of {patch}")
    return TileSize(side=side, patch=patch, merge=MERGE)


def most_tiles(checkpoint: Checkpoint) -> int:
    """Of one picture, where the request does not say."""
    if not as_published(checkpoint):
        section = checkpoint.section("image_processor")
        section.expect("min_patches", (1,), 1)
        return section.count("max_patches", 12)
    config = checkpoint.config
    config.expect("min_dynamic_patch", (1,), 1)
    return config.count("max_dynamic_patch", 12) if config.read(bool, "dynamic_image_size", True) else 1


def pixel_bounds(checkpoint: Checkpoint) -> PixelBounds:
    text_section(checkpoint)  # another decoder is told before anything else
    tile = tile_of(checkpoint)
    area = tile.pixels**2
    return PixelBounds(
        image=most_tiles(checkpoint) * area, frame=area, token=area // tile.tokens, video=None, tiled=True
    )


def _expect_published(config: ConfigSection) -> None:
    """What only published files say. Here, so that a plan, which opens no processor, refuses what a start does."""
    config.expect("template", ("internvl2_5",), "internvl2_5")
    config.expect("pad2square", (False,), False)
    config.expect("ps_version", ("v2",), "v2")
    config.expect("select_layer", (-1,), -1)
    system_message(config)
    has_thumbnail(config)


def system_message(config: ConfigSection) -> str:
    """What a published prompt begins with where the client says nothing: the file's own, else the template's."""
    return config.read(str, "system_message", SYSTEM)


def has_thumbnail(config: ConfigSection) -> bool:
    """Whether the tiles of a picture have the whole one behind them."""
    return config.read(bool, "use_thumbnail", True)


def _side(vision: ConfigSection, key: str) -> int:
    """A number, or a list with it twice, as saves have it."""
    value = vision.read(object, key)
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1]:
            raise CheckpointError(f"{vision.location}: {key} {value} is no square")
        return ConfigSection({key: value[0]}, vision.location).count(key)
    return vision.count(key)
