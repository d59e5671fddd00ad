"""How Mistral Small 3.1 reads a chat: a picture is rows of placeholders, each with a delimiter behind it."""

import re
from collections.abc import Mapping

import numpy as np

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection, shown
from configs.serve import MediaConfig
from model.families.mistral3.sizes import picture_tokens, pictures_of
from tokenization.chat.parts import Kind
from tokenization.chat.tool_form import ToolForm
from tokenization.media.source import Source
from tokenization.messages import Reduced
from tokenization.processor import Measure, Modality, RowsProcessor, StageClock
from tokenization.shrunk_pictures import ShrunkPictures
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate

# What published files split texts by, which is Llama 3's (microsoft/onnxruntime-genai, issue 1557, quotes the file).
WRONG_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What their models were trained with: `pattern` in tekken.json.
TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_VERSION = re.compile(r"\s*v?([0-9]{1,9})((?:\.[0-9]+)*)[-_.]?(a|b|c|rc|pre|dev)?", re.IGNORECASE)


class Mistral3Pictures(ShrunkPictures):
    """Scaled down to a longest side, and stretched to whole tokens."""

    def __init__(self, checkpoint: Checkpoint, cap: int) -> None:
        """Raises CheckpointError for files that ask for other pictures."""
        section = checkpoint.section("image_processor")
        super().__init__(cap, section.origin())
        self._sizes = pictures_of(checkpoint)
        for key in ("do_resize", "do_convert_rgb"):
            section.expect(key, (True,), True)
        section.expect("do_center_crop", (False,), False)
        section.expect("resample", (3,), 3)

    def sized(self, height: int, width: int, pixels: int) -> tuple[int, int]:
        return self._sizes.sized(height, width, pixels)

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [patches, 3 * patch * patch]. Raises ChatError for min_pixels, and for a picture that is too narrow."""
        seen, side = self.see(source, limits), self._sizes.token
        return self._measure(seen.height // side, seen.width // side, seen.size, seen.reduced)

    def largest(self, limits: MediaConfig, max_tokens: int) -> Measure | None:
        """The picture of most tokens that its longest side, the server's cap and `max_tokens` let through."""
        grid = self._sizes.largest(self.cap, max_tokens)
        return None if grid is None else self._measure(*grid)

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """uint8 [patches, 3 * patch * patch], token by token, columns (channel, y, x)."""
        from tokenization.media.image import decode, to_patches

        patch, (_, rows, columns) = self._sizes.patch, measure.grid
        with clock.stage("decode", measure.kind):
            picture = decode(source.data, max_source_pixels=limits.max_source_pixels, check=source.check)
        with clock.stage("resize", measure.kind):
            image = picture.resized(width=columns * patch, height=rows * patch)
        with clock.stage("patch", measure.kind):
            return to_patches(image, patch=patch, merge=self._sizes.merge)

    def _measure(
        self, rows: int, columns: int, size: tuple[int, int] | None = None, reduced: Reduced | None = None
    ) -> Measure:
        """Of a picture of rows and columns of tokens."""
        merge, patch = self._sizes.merge, self._sizes.patch
        return Measure(
            kind="image", grid=(1, rows * merge, columns * merge), shape=(rows * columns * merge**2, 3 * patch**2),
            n_tokens=rows * columns, n_delimiters=rows, size=size, reduced=reduced,
            resized=(rows * merge * patch, columns * merge * patch),
        )  # fmt: skip


class Mistral3Processor(RowsProcessor):
    modalities: Mapping[Kind, Modality] = {"image": Modality(expansion="rows")}
    tool_form = ToolForm(name="mistral", mark="[TOOL_CALLS]", opening="[", between=", ", closing="]")

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels: the server's cap on one resized image. Raises CheckpointError for damaged or other files."""
        tokens, files = picture_tokens(checkpoint), checkpoint.file("processor_config.json")
        self.tokenizer = BPETokenizer.from_checkpoint(checkpoint, tokens.said)
        self._mended = saved_before_5(checkpoint.config) and self.tokenizer.replace_split(WRONG_SPLIT, TEKKEN_SPLIT)
        self.placeholders = tokens.placeholders
        written = files.read(str, "image_token", "[IMG]")
        if self.tokenizer.special.get(written) != self.placeholders["image"]:
            said = tokens.said[self.placeholders["image"]]
            raise CheckpointError(
                f"{said} is {self.placeholders['image']}, not the id of {written!r}, the image_token of "
                f"{files.location}"
            )
        self.row_ends = (tokens.delimiters["image_break_token_id"], tokens.delimiters["image_end_token_id"])
        self.template = ChatTemplate.from_checkpoint(checkpoint)
        self.handlers = {"image": Mistral3Pictures(checkpoint, max_pixels)}

    @property
    def origins(self) -> dict[str, str]:
        words = "tekken's pattern; that of tokenizer.json is a known fault (docs/models.md)"
        return ({"words": words} if self._mended else {}) | super().origins


def saved_before_5(config: ConfigSection) -> bool:
    """Whether config.json names no version of transformers, or one that PEP 440 puts before 5.0.0.

    Files of these may have the wrong split, by the same rule in transformers' tokenization_utils_tokenizers.py. Raises
    CheckpointError for what is no version.
    """
    version = config.read(str, "transformers_version", "")
    if not version:
        return True
    found = _VERSION.match(version)
    if found is None:
        said = f"{config.location}: 'transformers_version' is {shown(version)}"
        raise CheckpointError(f"{said}, expected a version such as 4.50.0")
    major, rest, early = int(found[1]), found[2], found[3]
    return major < 5 or (major == 5 and early is not None and not rest.strip(".0"))
