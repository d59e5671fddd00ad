"""Pictures and videos as patches: resized to whole tokens within bounds, cut, and laid token by token."""

import math
from dataclasses import dataclass

import numpy as np

from configs.checkpoint import Checkpoint, ConfigSection
from configs.serve import MediaConfig
from model.grids.bounds import image_bounds
from model.grids.largest import largest_area, largest_video
from tokenization.chat.errors import ChatError
from tokenization.chat.options import LOW_DETAIL_PIXELS, MediaOptions
from tokenization.chat.parts import Kind
from tokenization.media.frame_sampling import FRAME_FACTOR, UNBOUNDED, FrameRules
from tokenization.media.smart_resize import held_resize, n_tokens
from tokenization.media.source import Source
from tokenization.media.video_plan import VideoPlan
from tokenization.messages import Reduced, ReducedBy
from tokenization.processor import Measure, MediaHandler, StageClock


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSize:
    """The same for pictures and frames."""

    side: int  # of a patch in pixels
    merge: int  # side of a token in patches

    @property
    def token(self) -> int:
        """Side of a token in pixels."""
        return self.side * self.merge

    def grid(self, size: tuple[int, int], steps: int = 1) -> tuple[int, int, int]:
        """size: (height, width) in pixels; steps: temporal grids."""
        return steps, size[0] // self.side, size[1] // self.side

    def measure(
        self, kind: Kind, grid: tuple[int, int, int], *, size: tuple[int, int] | None = None,
        video: VideoPlan | None = None, reduced: Reduced | None = None,
    ) -> Measure:  # fmt: skip
        """size, video, reduced: as of Measure."""
        frames = FRAME_FACTOR if kind == "video" else 1
        shape = (math.prod(grid), 3 * frames * self.side**2)
        return Measure(
            kind=kind, grid=grid, shape=shape, n_tokens=n_tokens(grid, self.merge), size=size, video=video,
            resized=(grid[1] * self.side, grid[2] * self.side), reduced=reduced,
        )  # fmt: skip

    def expect_of(self, section: ConfigSection, side: int = 14) -> None:
        """Raises CheckpointError for a processor's file that cuts otherwise. side: its class's default."""
        section.expect("patch_size", (self.side,), side)
        section.expect("merge_size", (self.merge,), 2)
        section.expect("temporal_patch_size", (FRAME_FACTOR,), FRAME_FACTOR)
        section.expect("resample", (3,), 3)
        for key in ("do_resize", "do_convert_rgb"):
            section.expect(key, (True,), True)


class PatchPictures(MediaHandler):
    def __init__(self, checkpoint: Checkpoint, patches: PatchSize, cap: int) -> None:
        """cap: the server's, on pixels of one resized image. Raises CheckpointError."""
        section = checkpoint.section("image_processor")
        patches.expect_of(section)
        self.origin = section.origin()
        self._patches, self._cap = patches, cap
        self._min_pixels, self._max_pixels = image_bounds(checkpoint)

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [patches, 3 * patch * patch]."""
        from tokenization.media.image import read_header

        header = read_header(source.data, max_source_pixels=limits.max_source_pixels)
        try:
            found = self._resized(header.height, header.width, source.options, self._cap)
            wanted = self._resized(header.height, header.width, source.options, UNBOUNDED)
        except ValueError as error:
            raise ChatError(f"the image cannot be used: {error}") from None
        return self._patches.measure(
            "image",
            self._patches.grid(found),
            size=(header.width, header.height),
            reduced=_reduced("max_pixels", found, wanted),
        )

    def largest(self, limits: MediaConfig, max_tokens: int) -> Measure:
        """A picture of as many pixels as a request may ask for."""
        merge = self._patches.merge
        rows, columns = largest_area(max(1, min(self._cap // self._patches.token**2, max_tokens)))
        return self._patches.measure("image", (1, rows * merge, columns * merge))

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """uint8 in merge-block order, columns (channel, y, x)."""
        from tokenization.media.image import decode, to_patches

        side, (_, rows, columns) = self._patches.side, measure.grid
        with clock.stage("decode", measure.kind):
            picture = decode(source.data, max_source_pixels=limits.max_source_pixels, check=source.check)
        with clock.stage("resize", measure.kind):
            image = picture.resized(width=columns * side, height=rows * side)
        with clock.stage("patch", measure.kind):
            return to_patches(image, patch=side, merge=self._patches.merge)

    def _resized(self, height: int, width: int, options: MediaOptions, cap: int) -> tuple[int, int]:
        """(height, width) after resizing, by the request's bounds under `cap`, else by the checkpoint's."""
        most = min(options.max_pixels or self._max_pixels, cap)
        if options.low_detail:
            most = min(most, LOW_DETAIL_PIXELS)
        fewest = min(options.min_pixels or self._min_pixels, most)
        # The processor lets rounding pass its own bounds, and so do we; nothing passes the server's cap, and a
        # request's minimum not its maximum.
        cap = cap if options.min_pixels is None else most
        return held_resize(height, width, factor=self._patches.token, min_pixels=fewest, max_pixels=most, cap=cap)


class PatchVideos(MediaHandler):
    def __init__(
        self, checkpoint: Checkpoint, patches: PatchSize, frames: FrameRules, *, rules: str, side: int = 14,
    ) -> None:  # fmt: skip
        """side: of a patch by the processor's class; rules: whose they are, for people. Raises CheckpointError."""
        section = checkpoint.section("video_processor")
        patches.expect_of(section, side)
        self.origin = section.origin(rules)
        self._patches, self._frames = patches, frames

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [patches, 2 * 3 * patch * patch]: two frames a row."""
        from tokenization.media.video_frames import plan_video

        plan = plan_video(source, limits, self._frames, factor=self._patches.token)
        grid = self._patches.grid(plan.size, len(plan.indices) // FRAME_FACTOR)
        return self._patches.measure("video", grid, video=plan, reduced=_frame_reduced(plan))

    def largest(self, limits: MediaConfig, max_tokens: int) -> Measure | None:
        """The longest video of the largest square frames."""
        found = largest_video(limits, max_tokens, self._frames, factor=self._patches.token)
        return None if found is None else self._patches.measure("video", self._patches.grid(found[1], found[0]))

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """uint8 in merge-block order, columns (channel, frame, y, x)."""
        from tokenization.media.video_frames import read_video, video_patches

        assert measure.video is not None
        with clock.stage("decode", measure.kind):
            frames = read_video(source, measure.video, limits)
        with clock.stage("patch", measure.kind):
            return video_patches(frames, patch=self._patches.side, merge=self._patches.merge)


def _reduced(limit: ReducedBy, size: tuple[int, int], wanted: tuple[int, int]) -> Reduced | None:
    """Both (height, width)."""
    return None if size == wanted else Reduced(limit=limit, size=size[::-1], wanted=wanted[::-1])


def _frame_reduced(plan: VideoPlan) -> Reduced | None:
    assert plan.frame is not None
    by_frame = plan.frame.wanted(max_pixels=plan.frame.limits.max_pixels) == plan.size
    limit: ReducedBy = "max_pixels" if by_frame else "max_video_pixels"
    return _reduced(limit, plan.size, plan.frame.wanted())
