"""How Mistral Small 3.1 reads a chat: a picture is rows of pads with a mark after each, and another after the last."""

from collections.abc import Mapping, Sequence

import numpy as np

from configs.checkpoint import Checkpoint, CheckpointError
from configs.serve import MediaConfig
from model.families.mistral3.sizes import picture_marks, pictures_of
from tokenization.chat.errors import ChatError
from tokenization.chat.options import LOW_DETAIL_PIXELS, MediaOptions
from tokenization.chat.parts import Chat, Kind
from tokenization.chat.rendering import MEDIA
from tokenization.media.frame_sampling import UNBOUNDED
from tokenization.media.source import Source
from tokenization.messages import Reduced
from tokenization.pads import expand_rows, plain_positions, render_pads
from tokenization.processor import Feature, Layout, Measure, Modality, StageClock
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate

MODALITIES: Mapping[Kind, Modality] = {"image": Modality(expansion="rows")}
_NOT_ENLARGED = "this model enlarges no picture: it takes no min_pixels"


class Mistral3Processor:
    """Pictures are scaled down to a longest side, and stretched to whole tokens."""

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels: the server's cap on one resized image. Raises CheckpointError for damaged or other files."""
        marks, files = picture_marks(checkpoint), checkpoint.file("processor_config.json")
        self.tokenizer = BPETokenizer.from_checkpoint(checkpoint, marks.said)
        self.pads: Mapping[Kind, int] = marks.pads
        written = files.read(str, "image_token", "[IMG]")
        if self.tokenizer.special.get(written) != self.pads["image"]:
            said = marks.said[self.pads["image"]]
            raise CheckpointError(
                f"{said} is {self.pads['image']}, not the id of {written!r}, the image_token of {files.location}"
            )
        self.modalities = MODALITIES
        self.features: frozenset[Feature] = frozenset()
        self.stop_ids: tuple[int, ...] = ()
        self._break, self._end = (marks.others[f"image_{name}_token_id"] for name in ("break", "end"))
        self._template = ChatTemplate.from_checkpoint(checkpoint)
        self._cap = max_pixels
        self._pictures = pictures_of(checkpoint)
        section = checkpoint.section("image_processor")
        for key in ("do_resize", "do_convert_rgb"):
            section.expect(key, (True,), True)
        section.expect("do_center_crop", (False,), False)
        section.expect("resample", (3,), 3)
        self.origins: Mapping[str, str] = {"chat template": self._template.location, "pictures": section.origin()}

    def fit(self, chat: Chat) -> Chat:
        """The chat as it is. Raises ChatError for a size to which pictures would be enlarged."""
        if chat.media_options.min_pixels is not None:
            raise ChatError(f"{MEDIA}.min_pixels: {_NOT_ENLARGED}", f"{MEDIA}.min_pixels")
        return chat

    def render(self, chat: Chat) -> list[int]:
        return render_pads(chat, self._template, self.tokenizer, self.pads)

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [patches, 3 * patch * patch]. Raises ChatError for min_pixels, and for a picture that is too narrow."""
        if source.options.min_pixels is not None:
            raise ChatError(_NOT_ENLARGED, source.param)
        from tokenization.media.image import read_header

        header = read_header(source.data, max_source_pixels=limits.max_source_pixels, param=source.param)
        try:
            found = self._sized(header.height, header.width, source.options, self._cap)
            wanted = self._sized(header.height, header.width, source.options, UNBOUNDED)
        except ValueError as error:
            raise ChatError(f"the image cannot be used: {error}", source.param) from None
        reduced = None if found == wanted else Reduced(limit="max_pixels", size=found[::-1], wanted=wanted[::-1])
        side = self._pictures.token
        return self._measure(found[0] // side, found[1] // side, (header.width, header.height), reduced)

    def largest(self, limits: MediaConfig, max_tokens: int) -> tuple[Measure, ...]:
        """The picture of most tokens that its longest side, the server's cap and `max_tokens` let through."""
        grid = self._pictures.largest(self._cap, max_tokens)
        return () if grid is None else (self._measure(*grid),)

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """uint8 [patches, 3 * patch * patch], token by token, columns (channel, y, x)."""
        from tokenization.media.image import decode, to_patches

        patch, (_, rows, columns) = self._pictures.patch, measure.grid
        with clock.stage("decode", measure.kind):
            picture = decode(
                source.data, max_source_pixels=limits.max_source_pixels, param=source.param, check=source.check
            )
        with clock.stage("resize", measure.kind):
            image = picture.resized(width=columns * patch, height=rows * patch)
        with clock.stage("patch", measure.kind):
            return to_patches(image, patch=patch, merge=self._pictures.merge)

    def expand(self, ids: Sequence[int], measures: Sequence[Measure]) -> Layout:
        pad, pictures = self.pads["image"], []
        for measure in measures:
            block = np.full((measure.n_marks, measure.n_pads // measure.n_marks + 1), pad, np.int64)
            block[:, -1] = self._break
            block[-1, -1] = self._end
            pictures.append(block)
        return expand_rows(ids, pad, pictures)

    def positions(self, layout: Layout, measures: Sequence[Measure]) -> tuple[np.ndarray, int]:
        return plain_positions(len(layout.input_ids))

    def _sized(self, height: int, width: int, options: MediaOptions, cap: int) -> tuple[int, int]:
        """(height, width) after resizing, by the request's bound under `cap`. Raises ValueError as `sized` does."""
        most = min(cap, options.max_pixels or cap)
        return self._pictures.sized(height, width, min(most, LOW_DETAIL_PIXELS) if options.low_detail else most)

    def _measure(
        self, rows: int, columns: int, size: tuple[int, int] | None = None, reduced: Reduced | None = None
    ) -> Measure:
        """Of a picture of rows and columns of tokens."""
        merge, patch = self._pictures.merge, self._pictures.patch
        return Measure(
            kind="image", grid=(1, rows * merge, columns * merge), shape=(rows * columns * merge**2, 3 * patch**2),
            n_pads=rows * columns, n_marks=rows, size=size, reduced=reduced,
        )  # fmt: skip
