"""The demo model's examination: chats with their right answers, drawn from seeds and wordings that training never sees.

Item i of a row and a seed always asks, shows and plays the same, though encoders of clips may differ in a few bytes.
"""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from demo import tasks
from demo.answers import COLOURS, DIRECTIONS, SHAPES, Language
from demo.clips import Clip, moving
from demo.exam_media import Part, clip_part, picture_part, sound_part
from demo.pictures import Picture, Thing, draw_number, draw_scene, random_size
from demo.sounds import Sound, beeps, sweep, tone
from demo.tasks import Asked, Asker
from demo.tooling import asked_with, declare
from demo.words import Words

HELD_OUT = 999  # first of four numbers that seed an item; training seeds with three
_TEXT_FIRST = 0.35

Box = tuple[float, float, float, float]  # x1, y1, x2, y2 in pixels of the picture that is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message and what must be said to it; `box` is set where the answer must be a box.

    `tool` is offered beside the question; where it must be called (`calls`), `answer` is the JSON of its arguments.
    """

    parts: tuple[Part, ...]
    question: str
    answer: str
    box: Box | None = None
    tool: Mapping[str, Any] | None = None
    calls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One chat of a row of the card: right if every turn is."""

    row: str
    turns: tuple[Turn, ...]


class Desk:
    """Where one item is made."""

    def __init__(self, words: Words, row: "Row", seed: int, index: int) -> None:
        self.rng = np.random.default_rng((HELD_OUT, seed, zlib.crc32(row.name.encode()), index))
        self.index = index
        self._words, self._language = words, row.language

    def asker(self, *, named: bool = False) -> Asker:
        """Asks by held-out wordings only."""
        return Asker(rng=self.rng, words=self._words, language=self._language, held_out=True, named=named)

    def pick(self, options: Sequence[str]) -> str:
        """One of them."""
        return options[int(self.rng.integers(len(options)))]

    def turn(self, asked: Asked, media: Sequence[Part] = (), picture: Picture | None = None) -> Turn:
        """The media before the question, or behind it; `picture` is the one that a box lies on."""
        box = None
        if asked.box is not None and picture is not None:
            (width, height), (x1, y1, x2, y2) = picture.image.size, asked.box  # 0..1000
            box = (x1 * width / 1000, y1 * height / 1000, x2 * width / 1000, y2 * height / 1000)
        text: Part = {"text": asked.question}
        parts = (text, *media) if media and self.rng.random() < _TEXT_FIRST else (*media, text)
        return Turn(parts=parts, question=asked.question, answer=asked.answer, box=box)

    def scene(self, counts: Sequence[int]) -> Picture:
        """A picture of as many things as one of `counts` says."""
        return draw_scene(self.rng, random_size(self.rng), int(self.rng.choice(np.array(counts))))

    def clip(self) -> Clip:
        """One thing that moves one of four ways."""
        return moving(self.rng, DIRECTIONS[int(self.rng.integers(4))])

    def sound(self, kind: str) -> Sound:
        """One to four beeps in turn, a tone or a glide."""
        if kind == "beeps":
            return beeps(self.rng, 1 + self.index % 4)
        if kind == "pitch":
            return tone(self.rng, "high" if self.rng.random() < 0.5 else "low")
        return sweep(self.rng, "rising" if self.rng.random() < 0.5 else "falling")


Make = Callable[[Desk], tuple[Turn, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the card. `goal`: the share that must be right."""

    name: str
    label: str
    language: Language
    make: Make
    goal: float | None = None

    def item(self, words: Words, seed: int, index: int) -> Item:
        """Item `index` of a seed; needs nothing but these."""
        return Item(row=self.name, turns=self.make(Desk(words, self, seed, index)))


# ---- pictures


def _has_answer(task: str, things: Sequence[Thing]) -> bool:
    """Whether the question can be asked of these: a colour or a shape that only one of them has, or all."""
    if task == "json":
        return len({one.shape for one in things}) == 1
    if task in ("shape_of", "colour_of"):
        told = [one.colour if task == "shape_of" else one.shape for one in things]
        return 1 in Counter(told).values()
    return True


def _scene(task: str, counts: Sequence[int]) -> Make:
    """A question of the task about one picture."""

    def make(desk: Desk) -> tuple[Turn, ...]:
        while True:
            picture = desk.scene(counts)
            if not _has_answer(task, picture.things):
                continue
            asked = tasks.about_picture(desk.asker(), picture, (task,))
            if asked.task == task:  # where nothing can be told from the rest, `where` asks something else
                return (desk.turn(asked, [picture_part(desk.rng, picture.image)], picture),)

    return make


def _number(desk: Desk) -> tuple[Turn, ...]:
    n = 1 + desk.index % 4
    first = int(desk.rng.integers(0 if n == 1 else 1, 10))
    digits = str(first) + "".join(map(str, desk.rng.integers(0, 10, n - 1)))
    picture = draw_number(desk.rng, random_size(desk.rng), digits)
    return (desk.turn(tasks.about_number(desk.asker(), picture), [picture_part(desk.rng, picture.image)]),)


def _pair(task: str) -> Make:
    """Two pictures of sizes of their own; about as often alike as not."""

    def make(desk: Desk) -> tuple[Turn, ...]:
        rng = desk.rng
        if task == "more":
            first = desk.scene((1, 2, 3, 4, 5))
            second = desk.scene((len(first.things),) if rng.random() < 0.25 else (1, 2, 3, 4, 5))
        else:
            kind = desk.pick(SHAPES), desk.pick(COLOURS)
            shape = kind[0] if rng.random() < 0.45 else desk.pick(SHAPES)
            other = shape, kind[1] if rng.random() < 0.45 else desk.pick(COLOURS)
            if task == "which_has" and other == kind:
                return make(desk)
            first = draw_scene(rng, random_size(rng), 1, kinds=[kind])
            second = draw_scene(rng, random_size(rng), 1, kinds=[other])
        asked = tasks.about_pair(desk.asker(), first, second, (task,))
        return (desk.turn(asked, [picture_part(rng, first.image), picture_part(rng, second.image)]),)

    return make


# ---- clips and sounds


def _clip(task: str) -> Make:
    def make(desk: Desk) -> tuple[Turn, ...]:
        clip = desk.clip()
        asked = tasks.about_clip(desk.asker(), clip, (task,))
        return (desk.turn(asked, [clip_part(desk.rng, clip, desk.index)]),)

    return make


def _sound(kind: str) -> Make:
    def make(desk: Desk) -> tuple[Turn, ...]:
        sound = desk.sound(kind)
        # Formats go round at another pace than counts, so that each meets each.
        part = sound_part(desk.rng, sound, desk.index + desk.index // 4)
        return (desk.turn(tasks.about_sound(desk.asker(), sound), [part]),)

    return make


# ---- no medium, several, several turns


def _text(ask: Callable[[Asker], Asked]) -> Make:
    return lambda desk: (desk.turn(ask(desk.asker())),)


def _mixed(desk: Desk) -> tuple[Turn, ...]:
    """A picture, a clip and a sound in any order; the question names the one that it is about."""
    picture = desk.scene((1, 1, 2, 3, 4, 5))
    clip, sound = desk.clip(), desk.sound(desk.pick(("beeps", "pitch", "sweep")))
    media = [
        picture_part(desk.rng, picture.image),
        clip_part(desk.rng, clip, desk.index),
        sound_part(desk.rng, sound, desk.index),
    ]
    asker, about = desk.asker(named=True), desk.index % 3
    if about == 0:
        asked = tasks.about_picture(asker, picture, ("thing",) if len(picture.things) == 1 else ("count",))
    else:
        asked = tasks.about_clip(asker, clip, ("motion",)) if about == 1 else tasks.about_sound(asker, sound)
    return (desk.turn(asked, [media[int(i)] for i in desk.rng.permutation(3)]),)


def _two_turns(desk: Desk) -> tuple[Turn, ...]:
    """Two different questions about one picture, the second without sending it again."""
    picture = desk.scene((1, 2, 3, 4))
    kinds = ("count", "count_of", "exists")
    first = tasks.about_picture(desk.asker(), picture, kinds)
    while (second := tasks.about_picture(desk.asker(), picture, kinds)).task == first.task:
        pass
    return desk.turn(first, [picture_part(desk.rng, picture.image)]), desk.turn(second)


def _offered(*, fits: bool) -> Make:
    """A question beside the offer of a tool, for which it is made or not."""

    def make(desk: Desk) -> tuple[Turn, ...]:
        declared = declare(desk.rng, held_out=True)
        while True:
            picture = desk.scene((1, 2, 3, 4, 5))
            asked = asked_with(desk.asker(), declared, picture)[0]
            if (asked.call is not None) == fits and asked.task in _BESIDE:
                told = replace(asked, answer=json.dumps(asked.call)) if fits else asked
                turn = desk.turn(told, [picture_part(desk.rng, picture.image)])
                return (replace(turn, tool=declared.tool, calls=fits),)

    return make


_BESIDE = ("tool_call", "shape", "colour", "thing", "exists", "shape_of", "colour_of")
_FEW, _SOME = (1, 1, 2, 3, 4, 5), (2, 3, 4)


def _row(name: str, label: str, make: Make, goal: float | None = None) -> Row:
    language: Language = "zh" if name.endswith("_zh") else "en"
    return Row(name=name, label=label, language=language, make=make, goal=goal)


ROWS = (
    _row("shape", "shape", _scene("shape", (1,)), 0.95),
    _row("colour", "colour", _scene("colour", (1,)), 0.95),
    _row("thing", "shape and colour", _scene("thing", (1,)), 0.95),
    _row("count", "counting to five", _scene("count", (1, 2, 3, 4, 5)), 0.95),
    _row("count_of", "counting one kind", _scene("count_of", (1, 2, 3, 4, 5)), 0.9),
    _row("exists", "is there one?", _scene("exists", _FEW)),
    _row("shape_of", "shape of the red one", _scene("shape_of", _SOME)),
    _row("colour_of", "colour of the star", _scene("colour_of", _SOME)),
    _row("where", "boxes at IoU 0.5", _scene("where", _FEW), 0.85),
    _row("number", "printed number", _number, 0.9),
    _row("same_shape", "two pictures: same shape?", _pair("same_shape"), 0.85),
    _row("same_colour", "two pictures: same colour?", _pair("same_colour"), 0.85),
    _row("more", "two pictures: which shows more?", _pair("more"), 0.85),
    _row("which_has", "two pictures: which shows it?", _pair("which_has"), 0.85),
    _row("motion", "direction of motion", _clip("motion"), 0.95),
    _row("moving_thing", "what moves", _clip("moving_thing")),
    _row("beeps", "one to four beeps", _sound("beeps"), 0.95),
    _row("pitch", "high or low", _sound("pitch"), 0.95),
    _row("sweep", "rising or falling", _sound("sweep")),
    _row("mixed", "picture, clip and sound at once", _mixed),
    _row("json", "JSON on request", _scene("json", (1, 1, 2, 3)), 0.8),
    _row("tool_called", "a tool called where it fits", _offered(fits=True), 0.8),
    _row("tool_left", "a tool left alone where it does not, and the answer right", _offered(fits=False), 0.8),
    _row("two_turns", "two questions in turn, both right", _two_turns, 0.8),
    _row("small_talk", "small talk", _text(tasks.small_talk), 0.8),
    _row("unknown", "says that it does not know", _text(tasks.unknown)),
    _row("without_medium", "asked about a medium that is not there", _text(tasks.without_medium)),
    _row("thing_zh", "Chinese: shape and colour", _scene("thing", (1,))),
    _row("count_zh", "Chinese: counting to five", _scene("count", (1, 2, 3, 4, 5))),
    _row("motion_zh", "Chinese: direction of motion", _clip("motion")),
    _row("beeps_zh", "Chinese: one to four beeps", _sound("beeps")),
    _row("pitch_zh", "Chinese: high or low", _sound("pitch")),
    _row("where_zh", "Chinese: boxes at IoU 0.5", _scene("where", _FEW)),
    _row("number_zh", "Chinese: printed number", _number),
    _row("unknown_zh", "Chinese: says that it does not know", _text(tasks.unknown)),
)
CHINESE_GOAL = 0.85  # of all Chinese questions together


def chosen_rows(only: str) -> tuple[Row, ...]:
    """The rows named, with commas between them; all for "". Raises ValueError for a name that is none."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = set(names) - {row.name for row in ROWS}
    if unknown:
        raise ValueError(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in ROWS)}")
    return tuple(row for row in ROWS if not names or row.name in names)
