"""What can be asked about a picture, a pair, a clip or a sound whose content is known, and the right answer.

Training and the accuracy card both ask through this.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from demo.answers import (
    COLOURS,
    SHAPES,
    UNKNOWN_ANSWER,
    Language,
    say,
    say_box,
    say_count,
    say_plural,
    say_thing,
    say_things,
    say_yes,
)
from demo.clips import Clip
from demo.pictures import Picture, Thing
from demo.sounds import Sound
from demo.words import Words

_NOUNS: dict[Language, tuple[str, ...]] = {"en": ("one", "shape", "object", "thing"), "zh": ("图形", "物体", "形状")}
_APART = 0.06  # of the width: things nearer than this have no order from left to right


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question and its answer; `box` (x1, y1, x2, y2 in 0..1000) where the answer is one.

    `things`: those of a picture that one has to look at for it. `kind`: the shape and the colour that are counted.
    `call`: the arguments of a tool, where the answer calls it.
    """

    task: str
    language: Language
    question: str
    answer: str
    box: tuple[float, float, float, float] | None = None
    things: tuple[Thing, ...] = ()
    kind: tuple[str | None, str | None] = (None, None)
    call: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Asks in one language, by training templates or held-out ones, with the medium's name in the question or not."""

    rng: np.random.Generator
    words: Words
    language: Language
    held_out: bool = False
    named: bool = False

    def ask(self, task: str, answer: str, things: Sequence[Thing] = (), **slots: str) -> Asked:
        """A question of the task with this answer."""
        text = self.words.ask(self.rng, task, self.language, held_out=self.held_out, named=self.named, **slots)
        return Asked(task=task, language=self.language, question=text, answer=answer, things=tuple(things))

    def pick(self, options: Sequence[str]) -> str:
        """One of them."""
        return options[int(self.rng.integers(len(options)))]

    def weigh(self, weights: Mapping[str, float]) -> str:
        """One of their names, each as often as its weight says."""
        shares = np.array(list(weights.values()))
        return list(weights)[int(self.rng.choice(len(weights), p=shares / shares.sum()))]


Question = Callable[[Asker], Asked]


def about_picture(asker: Asker, picture: Picture, tasks: Sequence[str] = ()) -> Asked:
    """A question about a picture of things, of one of `tasks` (none: any) that has one right answer here."""
    things = picture.things
    shapes, colours = {thing.shape for thing in things}, {thing.colour for thing in things}
    one, some = len(things) == 1, len(things) > 1
    options: dict[str, tuple[float, Question]] = {
        "count": (1.0 if one else 3.0, lambda a: a.ask("count", say_count(len(things)), things)),
        "count_of": (0.6 if one else 12.0, lambda a: _count_of(a, things)),
        "exists": (1.2 if one else 2.2, lambda a: _exists(a, things)),
    }
    if len(shapes) == 1:
        options["shape"] = (2.0, lambda a: a.ask("shape", say(things[0].shape, a.language), things))
    if len(colours) == 1:
        options["colour"] = (2.0, lambda a: a.ask("colour", say(things[0].colour, a.language), things))
    ordered = _ordered(things, picture.image.width)
    if ordered and len(things) <= 3:
        pairs = [(thing.shape, thing.colour) for thing in ordered]
        options["thing"] = (2.5 if one else 0.7, lambda a: a.ask("thing", say_things(pairs, a.language), things))
    if things:
        options["where"] = (4.5 if one else 7.0, lambda a: _where(a, picture))
    if len(shapes) == 1:
        options["json"] = (1.5, lambda a: _json(a, things))
    single_colours = [t for t in things if sum(t.colour == other.colour for other in things) == 1]
    single_shapes = [t for t in things if sum(t.shape == other.shape for other in things) == 1]
    if some and single_colours:
        options["shape_of"] = (1.2, lambda a: _shape_of(a, single_colours))
    if some and single_shapes:
        options["colour_of"] = (1.2, lambda a: _colour_of(a, single_shapes))
    wanted = {name: weight for name, (weight, _) in options.items() if not tasks or name in tasks}
    return options[asker.weigh(wanted)][1](asker)


def about_number(asker: Asker, picture: Picture) -> Asked:
    """The printed number."""
    return asker.ask("number", picture.number or "")


def about_pair(asker: Asker, first: Picture, second: Picture, tasks: Sequence[str] = ()) -> Asked:
    """A question that compares two pictures, in their order."""
    a, b = first.things, second.things
    options: dict[str, Question] = {"more": lambda q: q.ask("more", say(_more(len(a), len(b)), q.language), (*a, *b))}
    if len(a) == len(b) == 1:
        both = (a[0], b[0])
        same_shape, same_colour = a[0].shape == b[0].shape, a[0].colour == b[0].colour
        options["same_shape"] = lambda q: q.ask("same_shape", say_yes(same_shape, q.language), both)
        options["same_colour"] = lambda q: q.ask("same_colour", say_yes(same_colour, q.language), both)
        options["same_thing"] = lambda q: q.ask("same_thing", say_yes(same_shape and same_colour, q.language), both)
    only = [(t, "first") for t in a if not _has(b, t)] + [(t, "second") for t in b if not _has(a, t)]
    if only:
        options["which_has"] = lambda q: _which_has(q, only)
    wanted = [name for name in options if not tasks or name in tasks]
    likeness = {name: 3.0 if name.startswith("same_") else 1.0 for name in wanted}  # it is hard to learn
    return options[asker.weigh(likeness)](asker)


def about_clip(asker: Asker, clip: Clip, tasks: Sequence[str] = ()) -> Asked:
    """Which way it goes, or what it is that moves."""
    task = asker.pick(tasks or ("motion", "moving_thing"))
    if task == "motion":
        return asker.ask("motion", say(clip.direction, asker.language))
    return asker.ask("moving_thing", say_thing(clip.shape, clip.colour, asker.language))


def about_sound(asker: Asker, sound: Sound) -> Asked:
    """How many beeps, how high, which way: what this sound was made for."""
    if sound.pitch:
        return asker.ask("pitch", say(sound.pitch, asker.language))
    if sound.sweep:
        return asker.ask("sweep", say(sound.sweep, asker.language))
    return asker.ask("beeps", say_count(len(sound.beeps)))


def small_talk(asker: Asker) -> Asked:
    """Something said about itself."""
    question, answer = asker.words.small_talk(asker.rng, asker.language, asker.held_out)
    return Asked(task="small_talk", language=asker.language, question=question, answer=answer)


def unknown(asker: Asker) -> Asked:
    """A question outside of all that."""
    text = asker.words.unknown(asker.rng, asker.language, asker.held_out)
    return Asked(task="unknown", language=asker.language, question=text, answer=UNKNOWN_ANSWER[asker.language])


def without_medium(asker: Asker) -> Asked:
    """A question about a medium that the chat does not hold."""
    task = asker.pick(("shape", "colour", "count", "number", "motion", "beeps", "pitch", "sweep", "thing", "where"))
    thing = say_thing(asker.pick(SHAPES), asker.pick(COLOURS), asker.language)
    return asker.ask(task, UNKNOWN_ANSWER[asker.language], thing=thing)


def _count_of(asker: Asker, things: Sequence[Thing]) -> Asked:
    shape: str | None
    colour: str | None
    if things and asker.rng.random() < 0.8:
        thing = things[int(asker.rng.integers(len(things)))]
        shape, colour = thing.shape, thing.colour
    else:
        shape, colour = asker.pick(SHAPES), asker.pick(COLOURS)
    form = asker.rng.random()
    if form < 0.4:
        colour = None
    elif form < 0.75:
        shape = None
    noun = asker.pick({"en": ("shape", "object", "thing"), "zh": _NOUNS["zh"]}[asker.language])
    what = say_plural(shape, colour, asker.language, noun="" if shape else noun)
    found = [thing for thing in things if shape in (None, thing.shape) and colour in (None, thing.colour)]
    return replace(asker.ask("count_of", say_count(len(found)), found, what=what), kind=(shape, colour))


def _json(asker: Asker, things: Sequence[Thing]) -> Asked:
    """What all things have in common, or how many they are, under the keys that the question names."""
    rng, thing = asker.rng, things[0]
    chinese = asker.language == "zh" and rng.random() < 0.6
    shape, colour, count = ("形状", "颜色", "数量") if chinese else ("shape", "colour", "count")
    if not chinese and rng.random() < 0.4:
        colour = "color"
    language: Language = "zh" if chinese else "en"
    values: dict[str, str | int] = {shape: say(thing.shape, language)}
    if len({one.colour for one in things}) == 1:
        values[colour] = say(thing.colour, language)
    if len(things) > 1 or rng.random() < 0.2:
        values[count] = len(things)
    names = list(values)
    roll = rng.random()
    if roll > 0.65 or len(things) > 1:
        names = [names[int(k)] for k in rng.permutation(len(names))]
        if roll > 0.8:
            names = names[: 1 + int(rng.integers(len(names)))]
    shown = [f'"{name}"' for name in names] if rng.random() < 0.25 else names
    last = "、" if asker.language == "zh" and rng.random() < 0.4 else "和" if asker.language == "zh" else " and "
    keys = last.join([(", " if asker.language == "en" else "、").join(shown[:-1]), shown[-1]] if shown[1:] else shown)
    answer = json.dumps({name: values[name] for name in names}, ensure_ascii=False)
    return asker.ask("json", answer, things, keys=keys)


def _exists(asker: Asker, things: Sequence[Thing]) -> Asked:
    if things and asker.rng.random() < 0.5:
        thing = things[int(asker.rng.integers(len(things)))]
        shape, colour = thing.shape, thing.colour
    else:
        shape, colour = asker.pick(SHAPES), asker.pick(COLOURS)
        if things and asker.rng.random() < 0.4:  # nearly there: one of the two is
            near = things[int(asker.rng.integers(len(things)))]
            shape, colour = (near.shape, colour) if asker.rng.random() < 0.5 else (shape, near.colour)
    with_colour = asker.rng.random() < 0.6
    found = [t for t in things if t.shape == shape and (not with_colour or t.colour == colour)]
    named = say_thing(shape, colour if with_colour else None, asker.language)
    return asker.ask("exists", say_yes(bool(found), asker.language), found, thing=named)


def _where(asker: Asker, picture: Picture) -> Asked:
    """The thing is named by as little as tells it from all others, or by more."""
    things, (width, height) = picture.things, picture.image.size
    found: list[tuple[Thing, str]] = []
    for thing in things:
        for shape, colour in ((thing.shape, thing.colour), (thing.shape, None), (None, thing.colour)):
            if sum(shape in (None, t.shape) and colour in (None, t.colour) for t in things) == 1:
                noun = "" if shape else asker.pick(_NOUNS[asker.language])
                found.append((thing, say_thing(shape, colour, asker.language, noun=noun)))
    if not found:  # several of everything: the question has no one answer, so another is asked
        return asker.ask("count", say_count(len(things)), things)
    thing, named = found[int(asker.rng.integers(len(found)))]
    x1, y1, x2, y2 = thing.box
    box = (1000 * x1 / width, 1000 * y1 / height, 1000 * x2 / width, 1000 * y2 / height)
    return replace(asker.ask("where", say_box(named, box, asker.language), (thing,), thing=named), box=box)


def _shape_of(asker: Asker, things: Sequence[Thing]) -> Asked:
    thing = things[int(asker.rng.integers(len(things)))]
    return asker.ask("shape_of", say(thing.shape, asker.language), (thing,), colour=thing.colour)


def _colour_of(asker: Asker, things: Sequence[Thing]) -> Asked:
    thing = things[int(asker.rng.integers(len(things)))]
    return asker.ask("colour_of", say(thing.colour, asker.language), (thing,), shape=thing.shape)


def _which_has(asker: Asker, only: Sequence[tuple[Thing, str]]) -> Asked:
    thing, place = only[int(asker.rng.integers(len(only)))]
    named = say_thing(thing.shape, thing.colour, asker.language)
    return asker.ask("which_has", say(place, asker.language), (thing,), thing=named)


def _ordered(things: Sequence[Thing], width: int) -> list[Thing]:
    """From left to right; nothing where two of them stand above each other."""
    found = sorted(things, key=lambda thing: thing.box[0] + thing.box[2])
    middles = [(thing.box[0] + thing.box[2]) / 2 for thing in found]
    apart = all(b - a > _APART * width for a, b in zip(middles, middles[1:], strict=False))
    return found if apart else []


def _more(first: int, second: int) -> str:
    return "same" if first == second else "first" if first > second else "second"


def _has(things: Sequence[Thing], wanted: Thing) -> bool:
    return any(thing.shape == wanted.shape and thing.colour == wanted.colour for thing in things)
