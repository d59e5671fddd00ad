"""How Qwen3-VL reads a chat: pictures, and videos whose frames stand one by one behind the time that they are from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.family import PixelBounds
from model.grids.bounds import frame_rules, image_bounds
from model.grids.patches import PatchPictures, PatchSize, PatchVideos
from model.grids.positions import TimeScale, mrope_positions, single_block, vision_positions
from model.media_tokens import vision_tokens
from tokenization.chat.parts import Kind
from tokenization.chat.thought_form import THINK
from tokenization.chat.tool_form import HERMES
from tokenization.media.frame_sampling import FRAME_FACTOR, FrameRules
from tokenization.media.source import Source
from tokenization.placeholders import Layout, Spans, take_text
from tokenization.processor import Measure, MediaHandler, Modality, TemplateProcessor
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate

PATCH = 16  # pixels along a side, by the published classes
FRAMES = FrameRules(min_pixels=128 * 32 * 32, max_pixels=768 * 32 * 32, whole=True)  # Qwen3VLVideoProcessor's own


def patch_size(checkpoint: Checkpoint) -> PatchSize:
    vision = checkpoint.config.child("vision_config")
    return PatchSize(side=vision.count("patch_size", PATCH), merge=vision.count("spatial_merge_size", 2))


def pixel_bounds(checkpoint: Checkpoint) -> PixelBounds:
    """What the checkpoint's own files allow a picture and a video. Two frames may have all that a video may."""
    most = frame_rules(checkpoint, FRAMES).max_pixels // FRAME_FACTOR
    return PixelBounds(
        image=image_bounds(checkpoint)[1], frame=most, token=patch_size(checkpoint).token ** 2, video=most
    )


def seconds_of(measure: Measure) -> Iterator[float]:
    """Of each temporal grid: half-way between its first and its last frame."""
    plan = measure.video
    assert plan is not None
    for i in range(0, FRAME_FACTOR * measure.grid[0], FRAME_FACTOR):
        yield (plan.indices[i] / plan.fps + plan.indices[i + FRAME_FACTOR - 1] / plan.fps) / 2


class Qwen3VLProcessor(TemplateProcessor):
    """Defaults are those of the published classes."""

    modalities: Mapping[Kind, Modality] = {
        "image": Modality(positions="grid"),
        "video": Modality(positions="grid", expansion="frames"),
    }
    tool_form = HERMES
    thought_form = THINK
    # Whether the template's own marks stay around a video, as since transformers 5; transformers 4.57, with which the
    # models came, and vLLM write each frame's marks in their place.
    keeps_outer_marks = False

    def __init__(self, checkpoint: Checkpoint, max_pixels: int) -> None:
        """max_pixels: the server's cap on one resized image. Raises CheckpointError."""
        tokens = vision_tokens(checkpoint)
        self.tokenizer = BPETokenizer.from_checkpoint(checkpoint, tokens.said)
        self.placeholders = tokens.placeholders
        self.template = ChatTemplate.from_checkpoint(checkpoint)
        patches, config = patch_size(checkpoint), checkpoint.config
        self._merge = patches.merge
        self._marks = config.token_id("vision_start_token_id", 151652), config.token_id("vision_end_token_id", 151653)
        self.handlers: Mapping[Kind, MediaHandler] = {
            "image": PatchPictures(checkpoint, patches, max_pixels),
            "video": PatchVideos(
                checkpoint, patches, frame_rules(checkpoint, FRAMES), side=PATCH, rules="class Qwen3VLVideoProcessor"
            ),
        }

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """The delimiters of a video are its times and the marks around each frame."""
        found = super().measure(source, limits)
        if found.video is None:
            return found
        n = sum(len(stamp) + 2 for stamp in self._stamps(found)) - (0 if self.keeps_outer_marks else 2)
        return replace(found, n_delimiters=n)

    def expand(self, ids: Sequence[int], measures: Sequence[Measure]) -> Layout:
        """A picture becomes a run; a video a run for each temporal grid, between marks, behind its time as text."""
        found: list[int] = []
        spans: list[Spans] = []
        kinds = {placeholder: kind for kind, placeholder in self.placeholders.items()}
        left, skip = iter(measures), -1
        for i, token in enumerate(ids):
            if i == skip:
                continue
            if token not in kinds:
                found.append(token)
                continue
            measure = next(left)
            if measure.video is None:
                spans.append(((len(found), measure.n_tokens),))
                found += [token] * measure.n_tokens
                continue
            before = ""
            if not self.keeps_outer_marks and found[-1:] == [self._marks[0]] and ids[i + 1 : i + 2] == [self._marks[1]]:
                skip = i + 1
                found.pop()
                before = take_text(found, self.tokenizer)
            spans.append(self._frames(found, token, measure, before))
        return Layout(input_ids=np.array(found, np.int64), spans=tuple(spans))

    def positions(self, layout: Layout, measures: Sequence[Measure]) -> tuple[np.ndarray, int]:
        """m-rope: every temporal grid stands still in time, as a picture does; the text between them counts on."""
        scale = TimeScale(per_second=1, merge=self._merge)
        blocks = [
            single_block(start, vision_positions((1, *measure.grid[1:]), scale))
            for spans, measure in zip(layout.spans, measures, strict=True)
            for start, _ in spans
        ]
        return mrope_positions(len(layout.input_ids), blocks)

    def _frames(self, found: list[int], placeholder: int, measure: Measure, before: str) -> Spans:
        """Write a video behind `found`. before: the text that its first time is merged with."""
        n, spans = measure.n_tokens // measure.grid[0], []
        for stamp in self._stamps(measure, before):
            found += [*stamp, self._marks[0]]
            spans.append((len(found), n))
            found += [*[placeholder] * n, self._marks[1]]
        return tuple(spans)

    def _stamps(self, measure: Measure, before: str = "") -> Iterator[list[int]]:
        for seconds in seconds_of(measure):
            yield self.tokenizer.encode(f"{before}<{seconds:.1f} seconds>")
            before = ""
