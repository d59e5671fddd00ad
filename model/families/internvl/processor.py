"""How InternVL reads a chat: a picture is one run between two marks, a video one for each frame behind its number."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from configs.serve import MediaConfig
from model.families.internvl.frames import TileFrames
from model.families.internvl.sizes import (
    CONTEXT,
    FILM,
    OPENING,
    as_published,
    has_thumbnail,
    most_tiles,
    picture_tokens,
    system_message,
    text_section,
    tile_of,
)
from tokenization.chat.parts import Kind
from tokenization.media.source import Source
from tokenization.placeholders import Layout, Spans, take_text
from tokenization.processor import Feature, Measure, MediaHandler, Modality, TemplateProcessor
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate
from tokenization.tiled_pictures import TiledPictures

END = "<|im_end|>"


def template_with(system: str) -> str:
    """What published directories have in Python, the template "internvl2_5", and its system message.

    Their vocabulary has no token of videos, so a video is the mark that opens a picture, alone.
    """
    return (
        # A string of JSON is one of Jinja.
        "{% if messages[0].role != 'system' %}<|im_start|>system\n"
        "{{ " + json.dumps(system, ensure_ascii=False) + " }}<|im_end|>\n{% endif %}"
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.content is string %}{{ message.content }}{% else %}"
        "{% for part in message.content %}"
        "{% if part.type == 'image' %}" + CONTEXT + "\n"
        "{% elif part.type == 'video' %}" + OPENING + "\n"
        "{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


class InternVLProcessor(TemplateProcessor):
    modalities: Mapping[Kind, Modality] = {
        "image": Modality(expansion="marked"),
        "video": Modality(expansion="numbered"),
    }
    features: frozenset[Feature] = frozenset({"tiles"})

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels: the server's cap on one picture's tiles. Raises CheckpointError for damaged or other files."""
        text_section(checkpoint)  # another decoder, whose directories lack a tokenizer.json, too
        published, tile, tokens = as_published(checkpoint), tile_of(checkpoint), picture_tokens(checkpoint)
        self.tokenizer = BPETokenizer.from_checkpoint(checkpoint, tokens.said)
        self.placeholders = tokens.placeholders
        self._ends = tokens.delimiters["start_image_token"], tokens.delimiters["end_image_token"]
        if published:
            template = template_with(system_message(checkpoint.config))
            self.template = ChatTemplate.from_checkpoint(checkpoint, built_in=template)
            self.stop_ids = (self._special(END),)
            pictures = ConfigSection({}, "")
        else:
            self.template = ChatTemplate.from_checkpoint(checkpoint)
            pictures = checkpoint.section("image_processor")
            checkpoint.file("processor_config.json").expect("image_seq_length", (tile.tokens,), 256)
            _expect_pictures(pictures, tile.pixels)
            if videos := checkpoint.section("video_processor"):
                _expect_pictures(videos, tile.pixels)
        self._film = self._ends[0] if published else self._special(FILM)
        origin = "config.json" if published else pictures.origin()
        self.handlers: Mapping[Kind, MediaHandler] = {
            "image": TiledPictures(
                tile=tile, cap=max_pixels, most=most_tiles(checkpoint), origin=origin, on_white=not published,
                thumbnail=has_thumbnail(checkpoint.config),
            ),
            "video": TileFrames(tile=tile, usual=_usual_frames(checkpoint), origin=origin),
        }  # fmt: skip

    @property
    def marks(self) -> Mapping[Kind, int]:
        return {"image": self.placeholders["image"], "video": self._film}

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """The delimiters of a video are its numbers and the marks around each frame."""
        found = super().measure(source, limits)
        if found.video is None:
            return found
        return replace(found, n_delimiters=sum(len(number) + 2 for number in self._numbers(found.grid[0])))

    def expand(self, ids: Sequence[int], measures: Sequence[Measure]) -> Layout:
        """A picture becomes a run between marks; a video such a run for each frame, in lines with its number."""
        found: list[int] = []
        spans: list[Spans] = []
        marks, left = set(self.marks.values()), iter(measures)
        for token in ids:
            if token not in marks:
                found.append(token)
                continue
            measure = next(left)
            n = measure.n_tokens
            if measure.video is None:
                spans.append((self._run(found, n),))
                continue
            before, frames = take_text(found, self.tokenizer), []
            for number in self._numbers(measure.grid[0], before):
                found += number
                frames.append(self._run(found, n // measure.grid[0]))
            spans.append(tuple(frames))
        return Layout(input_ids=np.array(found, np.int64), spans=tuple(spans))

    def _run(self, found: list[int], n: int) -> tuple[int, int]:
        """Write `n` placeholders between marks behind `found`: where they are."""
        span = len(found) + 1, n
        found += [self._ends[0], *[self.placeholders["image"]] * n, self._ends[1]]
        return span

    def _numbers(self, n: int, before: str = "") -> Iterator[list[int]]:
        """Ids of what stands before each frame. before: the text that the first one is merged with."""
        for i in range(n):
            yield self.tokenizer.encode(f"{before if i == 0 else chr(10)}Frame{i + 1}: ")

    def _special(self, text: str) -> int:
        if text not in self.tokenizer.special:
            raise CheckpointError(f"tokenizer.json has no special token {text!r}")
        return self.tokenizer.special[text]


def _expect_pictures(section: ConfigSection, side: int) -> None:
    """`crop_to_patches` is not among them: the processor's class cuts tiles whatever the file says."""
    for key in ("do_resize", "do_convert_rgb"):
        section.expect(key, (True,), True)
    section.expect("resample", (3,), 3)
    size = section.child("size")
    for key in ("height", "width"):
        size.expect(key, (side,), 384)


def _usual_frames(checkpoint: Checkpoint) -> int:
    """Of a video; by the file where it says so."""
    return checkpoint.section("video_processor").count("num_frames", 8)
