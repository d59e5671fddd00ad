"""How Mistral Small 3.1 reads a chat: a picture is rows of placeholders, each with a delimiter behind it."""

from collections.abc import Mapping, Sequence

import numpy as np

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import MediaConfig
from model.families.mistral3.sizes import picture_tokens, pictures_of
from tokenization.chat.parts import Chat, Kind
from tokenization.media.source import Source
from tokenization.messages import Reduced
from tokenization.placeholders import Layout, expand_rows
from tokenization.processor import Measure, Modality, StageClock, TemplateProcessor
from tokenization.shrunk_pictures import ShrunkPictures
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate


class Mistral3Processor(TemplateProcessor):
    """Pictures are scaled down to a longest side, and stretched to whole tokens."""

    modalities: Mapping[Kind, Modality] = {"image": Modality(expansion="rows")}

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels: the server's cap on one resized image. Raises CheckpointError for damaged or other files."""
        tokens, files = picture_tokens(checkpoint), checkpoint.file("processor_config.json")
        self.tokenizer = BPETokenizer.from_checkpoint(checkpoint, tokens.said)
        self.placeholders = tokens.placeholders
        written = files.read(str, "image_token", "[IMG]")
        if self.tokenizer.special.get(written) != self.placeholders["image"]:
            said = tokens.said[self.placeholders["image"]]
            raise CheckpointError(
                f"{said} is {self.placeholders['image']}, not the id of {written!r}, the image_token of "
                f"{files.location}"
            )
        self._break, self._end = (tokens.delimiters[f"image_{name}_token_id"] for name in ("break", "end"))
        self.template = ChatTemplate.from_checkpoint(checkpoint)
        self._pictures = pictures_of(checkpoint)
        self._shrunk = ShrunkPictures(cap=max_pixels, sized=self._pictures.sized)
        section = checkpoint.section("image_processor")
        for key in ("do_resize", "do_convert_rgb"):
            section.expect(key, (True,), True)
        section.expect("do_center_crop", (False,), False)
        section.expect("resample", (3,), 3)
        self.origins = {"chat template": self.template.location, "pictures": section.origin()}

    def fit(self, chat: Chat) -> Chat:
        """The chat as it is. Raises ChatError for a size to which pictures would be enlarged."""
        self._shrunk.refuse_bounds(chat)
        return chat

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [patches, 3 * patch * patch]. Raises ChatError for min_pixels, and for a picture that is too narrow."""
        seen, side = self._shrunk.see(source, limits), self._pictures.token
        return self._measure(seen.height // side, seen.width // side, seen.size, seen.reduced)

    def largest(self, limits: MediaConfig, max_tokens: int) -> tuple[Measure, ...]:
        """The picture of most tokens that its longest side, the server's cap and `max_tokens` let through."""
        grid = self._pictures.largest(self._shrunk.cap, max_tokens)
        return () if grid is None else (self._measure(*grid),)

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """uint8 [patches, 3 * patch * patch], token by token, columns (channel, y, x)."""
        from tokenization.media.image import decode, to_patches

        patch, (_, rows, columns) = self._pictures.patch, measure.grid
        with clock.stage("decode", measure.kind):
            picture = decode(source.data, max_source_pixels=limits.max_source_pixels, check=source.check)
        with clock.stage("resize", measure.kind):
            image = picture.resized(width=columns * patch, height=rows * patch)
        with clock.stage("patch", measure.kind):
            return to_patches(image, patch=patch, merge=self._pictures.merge)

    def expand(self, ids: Sequence[int], measures: Sequence[Measure]) -> Layout:
        placeholder, pictures = self.placeholders["image"], []
        for measure in measures:
            block = np.full((measure.n_delimiters, measure.n_tokens // measure.n_delimiters + 1), placeholder, np.int64)
            block[:, -1] = self._break
            block[-1, -1] = self._end
            pictures.append(block)
        return expand_rows(ids, placeholder, pictures)

    def _measure(
        self, rows: int, columns: int, size: tuple[int, int] | None = None, reduced: Reduced | None = None
    ) -> Measure:
        """Of a picture of rows and columns of tokens."""
        merge, patch = self._pictures.merge, self._pictures.patch
        return Measure(
            kind="image", grid=(1, rows * merge, columns * merge), shape=(rows * columns * merge**2, 3 * patch**2),
            n_tokens=rows * columns, n_delimiters=rows, size=size, reduced=reduced,
        )  # fmt: skip
