"""A chat with an answer becomes ids, labels and positions, as the server would lay it out.

A test holds this against the server's own reading of the same chat.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from tokenizers import Tokenizer

from demo.checkpoint import AROUND, PADS, id_of
from demo.sizes import Sizes
from model.grids.positions import TimeScale, audio_positions, mrope_positions, single_block, vision_positions

IGNORED = -100  # label of what the model need not say
OTHER = "other image"  # the kind of pictures that have another size than those of kind "image"


@dataclass(frozen=True, slots=True)
class Ref:
    """A medium of a batch: its kind and its number among those of the kind."""

    kind: str
    number: int


Parts = tuple[str | Ref, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A conversation whose answers are to be learnt; `history` holds earlier questions with their answers."""

    parts: Parts
    answer: str
    history: tuple[tuple[Parts, str], ...] = ()
    task: str = ""
    system: str = ""  # what stands before all turns: the tools that are offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How large the media of one kind are in a batch: (t, h, w) in patches, of a sound (1, 1, frames)."""

    grid: tuple[int, int, int]
    seconds: float = 1.0  # of a clip, from one temporal grid to the next


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """One prompt with its answer."""

    ids: np.ndarray  # int64 [n]
    labels: np.ndarray  # int64 [n]: what follows each place, where that is part of an answer
    positions: np.ndarray  # int64 [3, n]
    places: tuple[tuple[Ref, int, int], ...]  # each medium: first pad and how many
    turning: tuple[
        tuple[int, ...], ...
    ]  # of each answer: places behind which it says what was seen, in a box and a number digits


def audio_tokens(frames: int) -> int:
    """Tokens of a sound of so many mel frames: a convolution of stride 2, then the mean of pairs."""
    return ((frames - 1) // 2 + 1) // 2


class Reader:
    """Encodes examples with one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, sizes: Sizes) -> None:
        self._tokenizer = tokenizer
        self._sizes = sizes
        self._time_scale = TimeScale(per_second=sizes.positions_per_second, merge=sizes.merge)
        self._start, self._end = (id_of(tokenizer, text) for text in ("<|im_start|>", "<|im_end|>"))
        self._box = id_of(tokenizer, "<box>")
        self._digits = {id_of(tokenizer, digit) for digit in "0123456789"}
        self._pads = {kind: id_of(tokenizer, text) for kind, text in PADS.items()}
        self._around = {
            kind: (id_of(tokenizer, opening), id_of(tokenizer, closing)) for kind, (opening, closing) in AROUND.items()
        }
        self._pads[OTHER], self._around[OTHER] = self._pads["image"], self._around["image"]

    def encode(self, example: Example, extents: Mapping[str, Extent]) -> Encoded:
        """The example with all pads in place; `extents` says how large the media of each kind are.

        KeyError: a kind without an extent.
        """
        ids: list[int] = []
        places: list[tuple[Ref, int, int]] = []
        answers: list[tuple[int, int]] = []  # (first, behind the last) of each, the end mark included
        if example.system:
            ids += [self._start, *self._text(f"system\n{example.system}"), self._end, *self._text("\n")]
        for parts, answer in (*example.history, (example.parts, example.answer)):
            self._ask(parts, ids, places, extents)
            ids += [self._start, *self._text("assistant\n")]
            first = len(ids)
            ids += [*self._text(answer), self._end]
            answers.append((first, len(ids)))
            ids += self._text("\n")
        del ids[answers[-1][1] :]
        labels = np.full(len(ids), IGNORED)
        for first, behind in answers:
            labels[first - 1 : behind - 1] = ids[first:behind]
        turning = []
        for first, behind in answers:
            said = range(first, behind - 1)
            if self._box in ids[first:behind]:
                said = range(ids.index(self._box, first), behind)
            elif not all(ids[i] in self._digits for i in said):
                said = range(0)
            turning.append(tuple(i - 1 for i in said if ids[i] in self._digits) or (first - 1,))
        return Encoded(
            ids=np.array(ids), labels=labels, positions=self._positions(len(ids), places, extents),
            places=tuple(places), turning=tuple(turning),
        )  # fmt: skip

    def n_tokens(self, kind: str, extent: Extent) -> int:
        """Pads of one medium."""
        if kind == "audio":
            return audio_tokens(extent.grid[2])
        return prod(extent.grid) // self._sizes.merge**2

    def _ask(
        self, parts: Parts, ids: list[int], places: list[tuple[Ref, int, int]], extents: Mapping[str, Extent]
    ) -> None:
        ids.append(self._start)
        text = "user\n"
        for part in parts:
            if isinstance(part, str):
                text += part
                continue
            opening, closing = self._around[part.kind]
            n = self.n_tokens(part.kind, extents[part.kind])
            ids += [*self._text(text), opening]
            places.append((part, len(ids), n))
            ids += [self._pads[part.kind]] * n + [closing]
            text = ""
        ids += [*self._text(text), self._end, *self._text("\n")]

    def _text(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def _positions(self, n: int, places: list[tuple[Ref, int, int]], extents: Mapping[str, Extent]) -> np.ndarray:
        """int64 [3, n]; sounds count like text, one position a token of 40 ms."""
        blocks = []
        for ref, start, count in places:
            extent = extents[ref.kind]
            seen = ref.kind != "audio"
            found = (
                vision_positions(extent.grid, self._time_scale, seconds_per_grid=extent.seconds)
                if seen
                else audio_positions(count)
            )
            blocks.append(single_block(start, found))
        return mrope_positions(n, blocks)[0].astype(np.int64)
