"""How Fuyu reads a chat: one picture first, row by row of its patches, then the text, then the answer."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import MediaConfig
from model.families.fuyu.sizes import IMAGE_TOKEN_ID, largest_grid, published_box, sized
from tokenization.chat.parts import Kind
from tokenization.media.source import Source
from tokenization.processor import Measure, Modality, RowsProcessor, StageClock
from tokenization.shrunk_pictures import ShrunkPictures
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate

PATCH, ROW_END, TEXT, ANSWER = "|SPEAKER|", "|NEWLINE|", "<s>", "<0x04>"
END = "|ENDOFTEXT|"  # what the model ends its answers with
_WHO = "the published processor"

# What the published processor's class writes round one text. The texts of several messages are lines, as vLLM has it:
# the model was trained on single questions, which end with a line's end.
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' and message.content is not string %}"
    "{% for part in message.content %}{% if part.type == 'image' %}{{ '|SPEAKER|' }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}{{ '<s>' }}"
    "{% for message in messages %}"
    "{% if message.content is string %}{% set text = message.content %}"
    "{% else %}{% set text = message.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join %}"
    "{% endif %}"
    "{% if loop.last and message.role == 'assistant' %}{{ '<0x04>' }}{% endif %}"
    "{{ text }}{% if text and not text.endswith('\\n') %}{{ '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<0x04>' }}{% endif %}"
)


class FuyuPictures(ShrunkPictures):
    """Scaled down into a box, and padded to whole patches."""

    def __init__(self, checkpoint: Checkpoint, cap: int) -> None:
        """Raises CheckpointError for files that ask for other pictures."""
        pictures = checkpoint.section("image_processor")
        super().__init__(cap, pictures.origin())
        for key in ("do_resize", "do_pad"):
            pictures.expect(key, (True,), True)
        pictures.expect("resample", (2,), 2)
        pictures.expect("padding_mode", ("constant",), "constant")
        padding = pictures.read(float, "padding_value", 1.0)
        if padding not in range(256):
            raise CheckpointError(f"{pictures.location}: padding_value {padding} is no whole number from 0 to 255")
        self._padding = int(padding)
        self._box = published_box(checkpoint)

    def sized(self, height: int, width: int, pixels: int) -> tuple[int, int]:
        return sized(height, width, self._box, pixels)

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [patches, 3 * patch * patch]. Raises ChatError for min_pixels, and for a picture that is too narrow."""
        seen = self.see(source, limits)
        found = self._measure(self._box.grid(seen.height, seen.width))
        return replace(found, size=seen.size, resized=(seen.height, seen.width), reduced=seen.reduced)

    def largest(self, limits: MediaConfig, max_tokens: int) -> Measure | None:
        """The picture of most patches that the box, the server's cap and `max_tokens` let through."""
        grid = largest_grid(self._box, self.cap, max_tokens)
        return None if grid is None else self._measure(grid)

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """uint8 [patches, 3 * patch * patch], patches row by row, columns (channel, y, x)."""
        from tokenization.media.image import decode, padded, to_patches

        patch, (_, rows, columns) = self._box.patch, measure.grid
        with clock.stage("decode", measure.kind):
            picture = decode(source.data, max_source_pixels=limits.max_source_pixels, check=source.check)
        with clock.stage("resize", measure.kind):
            assert measure.resized is not None, "a picture was measured"
            height, width = measure.resized
            image = picture.resized(width=width, height=height, bilinear=True)
        with clock.stage("patch", measure.kind):
            image = padded(image, width=columns * patch, height=rows * patch, value=self._padding)
            return to_patches(image, patch=patch, merge=1)

    def _measure(self, grid: tuple[int, int, int]) -> Measure:
        _, rows, columns = grid
        return Measure(
            kind="image", grid=grid, shape=(rows * columns, 3 * self._box.patch**2), n_tokens=rows * columns,
            n_delimiters=rows,
        )  # fmt: skip


class FuyuProcessor(RowsProcessor):
    """Defaults are those of the published processor's classes."""

    modalities: Mapping[Kind, Modality] = {"image": Modality(most=1, expansion="rows")}
    opens = False

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels: the server's cap on one resized image. Raises CheckpointError for damaged or other files."""
        self.tokenizer = BPETokenizer.from_checkpoint(
            checkpoint, named_special=dict.fromkeys((PATCH, ROW_END, TEXT, ANSWER, END), _WHO)
        )
        special, config = self.tokenizer.special, checkpoint.config
        if config.token_id("image_token_id", IMAGE_TOKEN_ID) != special[PATCH]:
            raise CheckpointError(
                f"{config.location}: image_token_id {config.token_id('image_token_id', IMAGE_TOKEN_ID)} is not "
                f"{special[PATCH]}, the id of {PATCH} in tokenizer.json"
            )
        self.placeholders = {"image": special[PATCH]}
        self.stop_ids = (special[END],)
        self.row_ends = (special[ROW_END], special[ROW_END])
        self.template = ChatTemplate.from_checkpoint(checkpoint, otherwise=TEMPLATE)
        self.handlers = {"image": FuyuPictures(checkpoint, max_pixels)}
