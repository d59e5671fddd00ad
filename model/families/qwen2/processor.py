"""How the Qwen models with dynamic resolution read a chat: placeholders for pictures and videos, 3-axis positions."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from configs.checkpoint import Checkpoint, ConfigSection
from configs.serve import MediaConfig
from model.families.qwen2.bounds import frame_rules, image_bounds
from model.families.qwen2.largest import largest_area, largest_video
from model.families.qwen2.positions import TimeScale, mrope_positions, single_block, vision_positions
from model.media_tokens import MediaTokens, read_media_tokens
from tokenization.chat.errors import ChatError
from tokenization.chat.options import LOW_DETAIL_PIXELS, MediaOptions
from tokenization.chat.parts import Kind
from tokenization.media.frame_sampling import FRAME_FACTOR, UNBOUNDED, FrameRules
from tokenization.media.smart_resize import held_resize, n_tokens
from tokenization.media.source import Source
from tokenization.media.video_plan import VideoPlan
from tokenization.messages import Reduced, ReducedBy
from tokenization.placeholders import Layout
from tokenization.processor import Measure, Modality, StageClock, TemplateProcessor
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate


def vision_tokens(checkpoint: Checkpoint) -> MediaTokens:
    return read_media_tokens(
        checkpoint,
        checkpoint.config,
        {"image": (("image_token_id",), 151655), "video": (("video_token_id",), 151656)},
        {
            "vision_start_token_id": "<|vision_start|>",
            "vision_end_token_id": "<|vision_end|>",
            "vision_token_id": "<|vision_pad|>",
        },
    )


class Qwen2Processor(TemplateProcessor):
    """Defaults are those of the published configuration classes."""

    modalities: Mapping[Kind, Modality] = {"image": Modality(positions="grid"), "video": Modality(positions="grid")}

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
        self._patch = vision.count("patch_size", 14)
        self._merge = vision.count("spatial_merge_size", 2)
        self._cap = max_pixels
        pictures, videos = checkpoint.section("image_processor"), checkpoint.section("video_processor")
        for section in (pictures, videos):
            self._check_patches(section)
        self._frames = frame_rules(checkpoint) if frames is None else frames
        self._min_pixels, self._max_pixels = image_bounds(checkpoint)
        self.origins = {
            "chat template": self.template.location,
            "pictures": pictures.origin(),
            "videos": videos.origin("rules of qwen-vl-utils"),
        }

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [patches, 3 * patch * patch], of a video with two frames a row."""
        if source.kind == "video":
            return self._measure_video(source, limits)
        from tokenization.media.image import read_header

        header = read_header(source.data, max_source_pixels=limits.max_source_pixels)
        try:
            height, width = self._image_size(header.height, header.width, source.options, self._cap)
            wanted = self._image_size(header.height, header.width, source.options, UNBOUNDED)
        except ValueError as error:
            raise ChatError(f"the image cannot be used: {error}") from None
        grid = (1, height // self._patch, width // self._patch)
        return Measure(
            kind=source.kind,
            grid=grid,
            shape=(grid[1] * grid[2], 3 * self._patch * self._patch),
            n_tokens=n_tokens(grid, self._merge),
            size=(header.width, header.height),
            reduced=_reduced("max_pixels", (height, width), wanted),
        )

    def largest(self, limits: MediaConfig, max_tokens: int) -> tuple[Measure, ...]:
        """A picture of as many pixels as a request may ask for, and the longest video of the largest square frames."""
        side = self._patch * self._merge
        rows, columns = largest_area(max(1, min(self._cap // side**2, max_tokens)))
        found = [self._largest("image", (1, rows * self._merge, columns * self._merge), frames=1)]
        video = largest_video(limits, max_tokens, self._frames, factor=side)
        if video is not None:
            grids, (height, width) = video
            grid = (grids, height // self._patch, width // self._patch)
            found.append(self._largest("video", grid, frames=FRAME_FACTOR))
        return tuple(found)

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """uint8 in merge-block order; columns (channel, y, x) of a picture, (channel, frame, y, x) of a video."""
        if measure.video is not None:
            from tokenization.media.video import read_video, video_patches

            with clock.stage("decode", measure.kind):
                frames = read_video(source, measure.video, limits)
            with clock.stage("patch", measure.kind):
                return video_patches(frames, patch=self._patch, merge=self._merge)
        from tokenization.media.image import decode, to_patches

        with clock.stage("decode", measure.kind):
            picture = decode(source.data, max_source_pixels=limits.max_source_pixels, check=source.check)
        with clock.stage("resize", measure.kind):
            image = picture.resized(width=measure.grid[2] * self._patch, height=measure.grid[1] * self._patch)
        with clock.stage("patch", measure.kind):
            return to_patches(image, patch=self._patch, merge=self._merge)

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

    def _largest(self, kind: Kind, grid: tuple[int, int, int], *, frames: int) -> Measure:
        shape = (math.prod(grid), 3 * frames * self._patch**2)
        return Measure(kind=kind, grid=grid, shape=shape, n_tokens=n_tokens(grid, self._merge))

    def _step(self, measure: Measure) -> float:
        """Positions from one temporal grid to the next."""
        if measure.video is None or self._tokens_per_second is None:
            return 1.0
        return measure.video.seconds_per_grid * self._tokens_per_second

    def _measure_video(self, source: Source, limits: MediaConfig) -> Measure:
        from tokenization.media.video import plan_video

        plan = plan_video(source, limits, self._frames, factor=self._patch * self._merge)
        height, width = plan.size
        grid = (len(plan.indices) // FRAME_FACTOR, height // self._patch, width // self._patch)
        return Measure(
            kind=source.kind,
            grid=grid,
            shape=(grid[0] * grid[1] * grid[2], 3 * FRAME_FACTOR * self._patch * self._patch),
            n_tokens=n_tokens(grid, self._merge),
            video=plan,
            reduced=_frame_reduced(plan),
        )

    def _image_size(self, height: int, width: int, options: MediaOptions, cap: int) -> tuple[int, int]:
        """(height, width) after resizing, by the request's bounds under `cap`, else by the checkpoint's."""
        most = min(options.max_pixels or self._max_pixels, cap)
        if options.low_detail:
            most = min(most, LOW_DETAIL_PIXELS)
        fewest = min(options.min_pixels or self._min_pixels, most)
        # The processor lets rounding pass its own bounds, and so do we; nothing passes the server's cap, and a
        # request's minimum not its maximum.
        cap = cap if options.min_pixels is None else most
        factor = self._patch * self._merge
        return held_resize(height, width, factor=factor, min_pixels=fewest, max_pixels=most, cap=cap)

    def _check_patches(self, section: ConfigSection) -> None:
        section.expect("patch_size", (self._patch,), 14)
        section.expect("merge_size", (self._merge,), 2)
        section.expect("temporal_patch_size", (FRAME_FACTOR,), FRAME_FACTOR)
        section.expect("resample", (3,), 3)
        for key in ("do_resize", "do_convert_rgb"):
            section.expect(key, (True,), True)


def _reduced(limit: ReducedBy, size: tuple[int, int], wanted: tuple[int, int]) -> Reduced | None:
    """Both (height, width)."""
    return None if size == wanted else Reduced(limit=limit, size=size[::-1], wanted=wanted[::-1])


def _frame_reduced(plan: VideoPlan) -> Reduced | None:
    assert plan.frame is not None
    by_frame = plan.frame.wanted(max_pixels=plan.frame.limits.max_pixels) == plan.size
    limit: ReducedBy = "max_pixels" if by_frame else "max_video_pixels"
    return _reduced(limit, plan.size, plan.frame.wanted())
