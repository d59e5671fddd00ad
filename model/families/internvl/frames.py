"""Videos as InternVL sees them: some frames, each as one tile."""

from dataclasses import dataclass, replace

import numpy as np

from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Chat
from tokenization.chat.rendering import MEDIA
from tokenization.media.source import Source
from tokenization.processor import Measure, MediaHandler, StageClock
from tokenization.tiled_pictures import TileSize


@dataclass(frozen=True, kw_only=True)
class TileFrames(MediaHandler):
    tile: TileSize
    usual: int  # frames, where the request does not say
    origin: str = ""

    def refuse_bounds(self, chat: Chat) -> None:
        """Raises ChatError where a request bounds the pixels of all its media otherwise, and a video is among them."""
        field = self._other(chat.media_options)
        if field and any(medium.kind == "video" for medium in chat.media):
            raise ChatError(f"{MEDIA}.{field}: {self._one_size()}", f"{MEDIA}.{field}")

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        """Shape [frames * side^2, 3 * patch^2], grid (frames, side, side). Raises ChatError, also for other bounds."""
        if field := self._other(source.options):
            raise ChatError(f"{field}: {self._one_size()}")
        from tokenization.media.video_frames import plan_single_frames

        plan = plan_single_frames(source, limits, side=self.tile.pixels, usual=self.usual)
        return replace(self._measure(len(plan.indices)), video=plan)

    def largest(self, limits: MediaConfig, max_tokens: int) -> Measure | None:
        """A video of as many frames as a request may ask for."""
        most = limits.max_video_pixels * 2 // self.tile.pixels**2
        n = min(limits.max_frames, max(1, most), max_tokens // self.tile.tokens)
        return self._measure(n) if n else None

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        """uint8, frame by frame, token by token in each, columns (channel, y, x)."""
        from tokenization.media.video_frames import read_video, video_patches

        assert measure.video is not None
        with clock.stage("decode", measure.kind):
            frames = read_video(source, measure.video, limits)
        with clock.stage("patch", measure.kind):
            return video_patches(frames, patch=self.tile.patch, merge=self.tile.merge, per_grid=1)

    def _other(self, options: MediaOptions) -> str:
        """The field that asks for frames of another size; empty where none does."""
        area = self.tile.pixels**2
        if options.total_pixels is not None:
            return "total_pixels"
        if options.min_pixels is not None and options.min_pixels > area:
            return "min_pixels"
        return "max_pixels" if options.max_pixels is not None and options.max_pixels < area else ""

    def _one_size(self) -> str:
        side = self.tile.pixels
        return f"this model sees every frame at {side} x {side} pixels; num_frames and fps say how many"

    def _measure(self, n: int) -> Measure:
        """Of `n` frames; numbers and marks are not counted yet."""
        side, tile = self.tile.side, self.tile
        resized = (tile.pixels, tile.pixels)
        return Measure(
            kind="video", grid=(n, side, side), shape=tile.shape(n), n_tokens=n * tile.tokens, resized=resized
        )
