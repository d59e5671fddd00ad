"""How the Qwen models with dynamic resolution read a chat: placeholders for pictures and videos, 3-axis positions."""

from collections.abc import Mapping, Sequence

import numpy as np

from configs.checkpoint import Checkpoint, ConfigSection
from model.grids.bounds import frame_rules
from model.grids.patches import PatchPictures, PatchSize, PatchVideos
from model.grids.positions import TimeScale, mrope_positions, single_block, vision_positions
from model.media_tokens import MediaTokens, vision_tokens
from tokenization.chat.parts import Kind
from tokenization.chat.tool_form import HERMES
from tokenization.media.frame_sampling import FrameRules
from tokenization.placeholders import Layout
from tokenization.processor import Measure, MediaHandler, Modality, TemplateProcessor
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate


class Qwen2Processor(TemplateProcessor):
    """Defaults are those of the published configuration classes."""

    modalities: Mapping[Kind, Modality] = {"image": Modality(positions="grid"), "video": Modality(positions="grid")}
    tool_form = HERMES

    def __init__(
        self,
        checkpoint: Checkpoint,
        max_pixels: int,
        *,
        tokens_per_second: float | None = None,
        config: ConfigSection | None = None,
        tokens: MediaTokens | None = None,
        frames: FrameRules | None = None,
    ) -> None:
        """Raises CheckpointError for a damaged tokenizer, template or processor's file.

        max_pixels: the server's cap on one resized image; tokens_per_second: of video, None: one for each temporal
        grid; config: the model's own keys, None: config.json; tokens: None: `vision_tokens`; frames: None:
        `frame_rules`.
        """
        config = checkpoint.config if config is None else config
        tokens = vision_tokens(checkpoint) if tokens is None else tokens
        vision = config.child("vision_config")
        self.tokenizer = BPETokenizer.from_checkpoint(checkpoint, tokens.said)
        self.placeholders = tokens.placeholders
        self.template = ChatTemplate.from_checkpoint(checkpoint)
        self._tokens_per_second = tokens_per_second
        patches = PatchSize(side=vision.count("patch_size", 14), merge=vision.count("spatial_merge_size", 2))
        self._merge = patches.merge
        frames = frame_rules(checkpoint) if frames is None else frames
        self.handlers: Mapping[Kind, MediaHandler] = {
            "image": PatchPictures(checkpoint, patches, max_pixels),
            "video": PatchVideos(checkpoint, patches, frames, rules="rules of qwen-vl-utils"),
        }

    def positions(self, layout: Layout, measures: Sequence[Measure]) -> tuple[np.ndarray, int]:
        """m-rope: text counts on all three axes, a picture stands still in time, a video follows its own clock."""
        # Text begins one past a medium's greatest position: transformers 4's rule; 5's differs for long videos only.
        # The step is one number before it meets an index: by seconds and positions a second it would round otherwise.
        time_scale = TimeScale(per_second=1, merge=self._merge)
        blocks = [
            single_block(spans[0][0], vision_positions(measure.grid, time_scale, seconds_per_grid=self._step(measure)))
            for spans, measure in zip(layout.spans, measures, strict=True)
        ]
        return mrope_positions(len(layout.input_ids), blocks)

    def _step(self, measure: Measure) -> float:
        """Positions from one temporal grid to the next."""
        if measure.video is None or self._tokens_per_second is None:
            return 1.0
        return measure.video.seconds_per_grid * self._tokens_per_second
