"""What a checkpoint says of pictures: their sizes, the ids that stand for them, and the sections' own defaults."""

import math
from dataclasses import dataclass

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from model.family import PixelBounds
from model.media_tokens import MediaTokens, read_media_tokens

# What holds where config.json lacks a whole section; else the section's own class fills the gaps.
_WHOLE_TEXT = {
    "vocab_size": 131072, "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e9,
}  # fmt: skip
_TEXT_GAPS = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
}  # fmt: skip
_TOWER = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
_WHOLE_TOWER = {**_TOWER, "patch_size": 14}
_TOWER_GAPS = {**_TOWER, "patch_size": 16}
LONGEST = 1024  # pixels of a picture's longer side, where the file does not say


def text_section(config: ConfigSection) -> ConfigSection:
    """The decoder's keys with the classes' defaults."""
    text = config.child("text_config")
    return text.merged(ConfigSection(_TEXT_GAPS if text else _WHOLE_TEXT, text.location))


def vision_section(config: ConfigSection) -> ConfigSection:
    """The tower's keys with the classes' defaults. Raises CheckpointError for another kind of tower."""
    vision = config.child("vision_config")
    found = vision.merged(ConfigSection(_TOWER_GAPS if vision else _WHOLE_TOWER, vision.location))
    found.expect("model_type", ("pixtral",), "pixtral")
    found.expect("num_channels", (3,), 3)
    return found


def picture_tokens(checkpoint: Checkpoint) -> MediaTokens:
    """The placeholder and the ids behind a picture's rows. Raises CheckpointError where the vocabulary lacks one."""
    files = checkpoint.file("processor_config.json")
    texts = {f"image_{name}_token": f"[IMG_{name.upper()}]" for name in ("break", "end")}
    texts = {key: files.read(str, key, text) for key, text in texts.items()}
    keys, tokens = ("image_token_index", "image_token_id"), {f"{key}_id": text for key, text in texts.items()}
    found = read_media_tokens(checkpoint, checkpoint.config, {"image": (keys, 10)}, tokens)
    for key, text in texts.items():
        if f"{key}_id" not in found.delimiters:
            raise CheckpointError(f"tokenizer.json has no added token {text!r}, which is the {key} of {files.location}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Sizes are (height, width) in pixels; a resized picture is of whole tokens."""

    longest: int  # most pixels of the longer side, before it becomes whole tokens
    patch: int  # side of a patch in pixels
    merge: int  # side of a token in patches

    @property
    def token(self) -> int:
        """Side of a token in pixels."""
        return self.patch * self.merge

    @property
    def most_tokens(self) -> int:
        """Along one side."""
        return math.ceil(self.longest / self.token)

    def fitted(self, height: int, width: int, longest: int) -> tuple[int, int]:
        """Scaled down to `longest` where it is larger, up to whole tokens then. A side may be 0."""
        # In this order, as the published processor computes: another rounding would lose a row of tokens.
        ratio = max(height / longest, width / longest)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        return math.ceil(height / self.token) * self.token, math.ceil(width / self.token) * self.token

    def sized(self, height: int, width: int, pixels: int) -> tuple[int, int]:
        """The largest of at most `pixels`, keeping its shape.

        Raises ValueError for a picture so narrow that nothing of it is left, and where not one token is allowed.
        """
        found = self.fitted(height, width, self.longest)
        if math.prod(found) > pixels:
            fewest, most = 0, self.longest  # the longer side: what fits, what does not
            while most - fewest > 1:
                middle = (fewest + most) // 2
                fits = math.prod(self.fitted(height, width, middle)) <= pixels
                fewest, most = (middle, most) if fits else (fewest, middle)
            found = self.fitted(height, width, fewest) if fewest else (0, 0)
        if min(found) < 1:
            raise ValueError(f"a picture of {width} x {height} pixels has no place in {pixels} pixels of the model's")
        return found

    def largest(self, pixels: int, tokens: int) -> tuple[int, int] | None:
        """(rows, columns) of tokens of the picture with most of them; each of its rows has one id more."""
        cells = pixels // self.token**2
        found = [
            (rows, min(self.most_tokens, cells // rows, tokens // rows - 1))
            for rows in range(1, min(self.most_tokens, cells) + 1)
        ]
        rows, columns = max(found, key=lambda grid: grid[0] * grid[1], default=(0, 0))
        return (rows, columns) if columns > 0 else None


def pictures_of(checkpoint: Checkpoint) -> Pictures:
    """Raises CheckpointError where the processor's tokens are not the network's."""
    vision, files = vision_section(checkpoint.config), checkpoint.file("processor_config.json")
    patch, merge = vision.count("patch_size"), checkpoint.config.count("spatial_merge_size", 2)
    if files or not checkpoint.sizes_alone:
        files.expect("patch_size", (patch,), 16)
        files.expect("spatial_merge_size", (merge,), 1)
    section = checkpoint.section("image_processor")
    size = section.child("size")
    longest = size.count("longest_edge") if size else LONGEST
    return Pictures(longest=longest, patch=patch, merge=merge)


def pixel_bounds(checkpoint: Checkpoint) -> PixelBounds:
    pictures = pictures_of(checkpoint)
    most = (pictures.most_tokens * pictures.token) ** 2
    return PixelBounds(image=most, frame=most, token=pictures.token**2)
