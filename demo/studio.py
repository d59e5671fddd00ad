"""Pictures, clips and sounds as arrays that the towers take, several of one size; and what each token of them shows.

Nothing goes through files here: pictures are resized and cut, and sounds become mel frames, by the very functions that
the server uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from configs.serve import MediaConfig
from demo.answers import COLOURS, DIRECTIONS, SHAPES
from demo.clips import Clip, moving, pick_size
from demo.pictures import Picture, Thing, crowd_kinds, draw_scene, random_size
from demo.prompts import Extent, audio_tokens
from demo.recording import worn_sound
from demo.sizes import Sizes
from demo.sounds import Sound, silence, sweep, tone
from demo.sounds import beeps as make_beeps
from demo.wear import lit_picture, worn_picture
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import sample_frames
from tokenization.media.image import resize, to_patches
from tokenization.media.mel import MelSpec, log_mel
from tokenization.media.smart_resize import smart_resize
from tokenization.media.video_frames import video_patches

NO_SHAPE, NO_COLOUR = len(SHAPES), len(COLOURS)
MOST_THINGS = 7  # in one scene
_TOKEN_SECONDS = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What each token of some pictures shows: the side lessons of the vision tower."""

    shape: np.ndarray  # int64 [pictures, tokens]; NO_SHAPE is ground
    colour: np.ndarray  # int64 [pictures, tokens]
    box: np.ndarray  # float32 [pictures, tokens, 4]: x1, y1, x2, y2 in 0..1 of the thing that is shown
    middle: np.ndarray  # int64 [pictures, tokens]: 1 in the one token in which the middle of a thing lies
    alike: np.ndarray  # int64 [pictures, tokens, 4]: how many things are of its shape, of its colour, of both; how many


class Studio:
    """Makes media from one generator; equal seeds give equal media."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes) -> None:
        self._rng = rng
        self._sizes = sizes
        self._mel = MelSpec(n_mels=sizes.mels)

    def picture_size(self) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """(width, height) of pictures before they are resized, and the grid they come to."""
        while True:
            width, height = random_size(self._rng)
            h, w = smart_resize(
                height, width, factor=self._sizes.cell, min_pixels=self._sizes.min_pixels,
                max_pixels=self._sizes.max_pixels,
            )  # fmt: skip
            most = 320  # what is larger comes out the same after resizing, only slower
            scale = min(1.0, most / max(width, height))
            if self._rng.random() < 0.1:
                scale = 1.0
            if h * w <= self._sizes.max_pixels:
                size = (max(32, round(width * scale)), max(32, round(height * scale)))
                return size, (1, h // self._sizes.patch, w // self._sizes.patch)

    def scene(self, size: tuple[int, int]) -> Picture:
        """A picture of none to seven things, mostly of few."""
        count = int(self._rng.choice(MOST_THINGS + 1, p=(0.01, 0.24, 0.13, 0.15, 0.15, 0.17, 0.11, 0.04)))
        kinds = crowd_kinds(self._rng, count) if count > 1 and self._rng.random() < 0.5 else None
        return draw_scene(self._rng, size, count, kinds=kinds, varied=True)

    def pair(self, size: tuple[int, int], other: tuple[int, int]) -> tuple[Picture, Picture]:
        """Two pictures of these sizes, often of one thing each, alike in shape, in colour, in both or in none."""
        rng = self._rng
        if rng.random() < 0.35:
            n = rng.integers(1, 6, 2)
            return (draw_scene(rng, size, int(n[0]), varied=True), draw_scene(rng, other, int(n[1]), varied=True))
        first, second = ((str(rng.choice(SHAPES)), str(rng.choice(COLOURS))) for _ in range(2))
        shape = first[0] if rng.random() < 0.45 else second[0]
        colour = first[1] if rng.random() < 0.45 else second[1]
        return (
            draw_scene(rng, size, 1, kinds=[first], varied=True),
            draw_scene(rng, other, 1, kinds=[(shape, colour)], varied=True),
        )

    def digits(self) -> str:
        """One to four digits; the first of several is not 0."""
        n = int(self._rng.choice((1, 2, 3, 4), p=(0.22, 0.28, 0.26, 0.24)))
        first = int(self._rng.integers(0 if n == 1 else 1, 10))
        return str(first) + "".join(map(str, self._rng.integers(0, 10, n - 1)))

    def patches(self, image: Image.Image, extent: Extent) -> np.ndarray:
        """uint8 [patches, columns] of a worn copy of the picture."""
        side = self._sizes.patch
        worn = worn_picture(self._rng, lit_picture(self._rng, image))
        fitted = resize(worn, width=extent.grid[2] * side, height=extent.grid[1] * side)
        return to_patches(fitted, patch=side, merge=self._sizes.merge)

    def clips(self, count: int) -> tuple[list[Clip], np.ndarray, Extent]:
        """Clips of one size and length, and the patches of the frames that a server would look at."""
        rng, sizes = self._rng, self._sizes
        seconds = float(np.round(rng.uniform(0.8, 5.0), 2))
        fps = float(rng.choice((8, 10, 12, 15, 24, 25, 30, 30, 60)))
        n_frames = max(4, round(seconds * fps))
        sampling = sample_frames(n_frames, fps, MediaOptions(), MediaConfig())
        size = pick_size(rng)
        h, w = smart_resize(
            size[1], size[0], factor=sizes.cell, min_pixels=sizes.frame_min_pixels, max_pixels=sizes.frame_max_pixels
        )
        made = [moving(rng, DIRECTIONS[int(rng.integers(4))], size, n_frames / fps) for _ in range(count)]
        patches = []
        for clip in made:
            frames = [resize(clip.frame(i / fps), width=w, height=h) for i in sampling.indices]
            stack = np.stack([np.asarray(frame) for frame in frames])
            patches.append(video_patches(self._grain(stack), patch=sizes.patch, merge=sizes.merge))
        grid = (len(sampling.indices) // 2, h // sizes.patch, w // sizes.patch)
        return made, np.stack(patches), Extent(grid=grid, seconds=sampling.seconds_per_grid)

    def _grain(self, frames: np.ndarray) -> np.ndarray:
        """What codecs leave on frames, roughly: noise, and a little less or more light."""
        if self._rng.random() < 0.5:
            return frames
        noise = self._rng.normal(self._rng.normal(0, 4), self._rng.uniform(0, 5), frames.shape)
        return np.clip(frames + noise, 0, 255).astype(np.uint8)

    def sounds(self, count: int) -> tuple[list[Sound], np.ndarray, Extent]:
        """Sounds of one length and their mel frames."""
        rng = self._rng
        seconds = float(np.round(rng.uniform(0.5, 5.5), 2))
        made, mel = [], []
        for _ in range(count):
            kind = rng.random()
            if kind < 0.44:
                room = int(max(1, min(6, (seconds - 0.15) / 0.24)))
                beeps = int(rng.integers(1, min(room, 4 if rng.random() < 0.8 else 6) + 1))
                sound = make_beeps(rng, beeps, seconds)
            elif kind < 0.46:
                sound = silence(rng, seconds)
            elif kind < 0.74:
                sound = tone(rng, "high" if rng.random() < 0.5 else "low", seconds)
            else:
                sound = sweep(rng, "rising" if rng.random() < 0.5 else "falling", seconds)
            made.append(sound)
            mel.append(log_mel(worn_sound(rng, sound.samples), self._mel))
        return made, np.stack(mel), Extent(grid=(1, 1, len(mel[0])))

    def seen(self, drawn: Sequence[Picture], grid: tuple[int, int, int]) -> Seen:
        """Each token shows the thing of which it holds most, if that is a fifth of the token or of the thing."""
        rows, columns = grid[1] // self._sizes.merge, grid[2] // self._sizes.merge
        shape = np.full((len(drawn), rows, columns), NO_SHAPE)
        colour = np.full((len(drawn), rows, columns), NO_COLOUR)
        box = np.zeros((len(drawn), rows, columns, 4), np.float32)
        middle = np.zeros((len(drawn), rows, columns), np.int64)
        alike = np.zeros((len(drawn), rows, columns, 4), np.int64)
        y, x = np.arange(rows)[:, None], np.arange(columns)[None]
        for i, picture in enumerate(drawn):
            best = np.zeros((rows, columns))
            for thing in picture.things:
                edges = np.array(thing.box) / np.tile(picture.image.size, 2)  # 0..1
                x1, y1, x2, y2 = edges * (columns, rows, columns, rows)
                wide = np.clip(np.minimum(x + 1, x2) - np.maximum(x, x1), 0, None)
                high = np.clip(np.minimum(y + 1, y2) - np.maximum(y, y1), 0, None)
                share = wide * high / min(1.0, (x2 - x1) * (y2 - y1))
                here = (share > 0.2) & (share > best)
                best = np.where(here, share, best)
                shape[i][here], colour[i][here] = SHAPES.index(thing.shape), COLOURS.index(thing.colour)
                box[i][here], alike[i][here] = edges, _alike(thing, picture.things)
                middle[i].flat[self.middle_of(thing, picture, grid)] = 1
        n = rows * columns
        return Seen(
            shape=shape.reshape(-1, n), colour=colour.reshape(-1, n), box=box.reshape(-1, n, 4),
            middle=middle.reshape(-1, n), alike=alike.reshape(-1, n, 4),
        )  # fmt: skip

    def middle_of(self, thing: Thing, picture: Picture, grid: tuple[int, int, int]) -> int:
        """The token in which the middle of the thing's box lies."""
        rows, columns = grid[1] // self._sizes.merge, grid[2] // self._sizes.merge
        (x1, y1, x2, y2), (width, height) = thing.box, picture.image.size
        return int((y1 + y2) / 2 / height * rows) * columns + int((x1 + x2) / 2 / width * columns)

    def read(self, drawn: Sequence[Picture], grid: tuple[int, int, int]) -> np.ndarray:
        """float32 [pictures, tokens, 10]: 1 for each digit of which a token holds a third or more."""
        rows, columns = grid[1] // self._sizes.merge, grid[2] // self._sizes.merge
        found = np.zeros((len(drawn), rows, columns, 10), np.float32)
        y, x = np.arange(rows)[:, None], np.arange(columns)[None]
        for i, picture in enumerate(drawn):
            digits, scale = picture.number or "", np.array((columns, rows, columns, rows))
            left, top, right, bottom = np.array(picture.number_box) / np.tile(picture.image.size, 2) * scale
            high = np.clip(np.minimum(y + 1, bottom) - np.maximum(y, top), 0, None)
            each = (right - left) / len(digits)  # digits of one font are about equally wide
            for k, digit in enumerate(digits):
                start = left + k * each
                wide = np.clip(np.minimum(x + 1, start + each) - np.maximum(x, start), 0, None)
                found[i, ..., int(digit)][wide * high > min(1.0, each * (bottom - top)) / 3] = 1
        return found.reshape(len(drawn), -1, 10)

    def digits_of(self, picture: Picture, grid: tuple[int, int, int]) -> list[int]:
        """The token in which the middle of each digit of a printed number lies."""
        rows, columns = grid[1] // self._sizes.merge, grid[2] // self._sizes.merge
        left, top, right, bottom = np.array(picture.number_box) / np.tile(picture.image.size, 2)
        n = len(picture.number or "")
        row = min(rows - 1, int((top + bottom) / 2 * rows))
        middles = (left + (right - left) * (np.arange(n) + 0.5) / n) * columns
        return [row * columns + min(columns - 1, int(x)) for x in middles]

    def heard(self, made: Sequence[Sound], extent: Extent) -> np.ndarray:
        """int64 [sounds, tokens]: 1 where a beep sounds in the middle of a token, 2 in the first such token of each."""
        n = audio_tokens(extent.grid[2])
        found = np.zeros((len(made), n), np.int64)
        middles = (np.arange(n) + 0.5) * _TOKEN_SECONDS
        for i, sound in enumerate(made):
            for start, stop in sound.beeps:
                inside = np.flatnonzero((middles >= start - 0.01) & (middles <= stop + 0.01))
                found[i][inside] = 1
                found[i][inside[:1]] = 2
        return found


def _alike(thing: Thing, things: Sequence[Thing]) -> tuple[int, int, int, int]:
    """How many of `things` have its shape, its colour, and both; and how many they are."""
    shapes, colours = [one.shape == thing.shape for one in things], [one.colour == thing.colour for one in things]
    both = [shape and colour for shape, colour in zip(shapes, colours, strict=True)]
    return sum(shapes), sum(colours), sum(both), len(things)
