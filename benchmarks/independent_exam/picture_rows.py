"""Rows about pictures: what is there, which colour, how many, where, which number, and two pictures."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.independent_exam.question import Question, one_of
from benchmarks.independent_exam.scenes import Scene, any_colour, any_shape, scene
from benchmarks.independent_exam.scoring import Digits, Names, Number, Pointed
from benchmarks.independent_exam.words import CHINESE, COLOURS, PLURALS, SHAPES, with_article

WHAT = ("What is in this picture?", "What is this?", "What do you see in this picture?", "What does the picture show?")
NOTHING_ONE_IN = 12  # questions for a kind that is not there
MOST = 6  # things in a scene that is counted


def single(look: str, rng: np.random.Generator) -> Scene:
    """One thing of any shape and colour."""
    return scene([(any_shape(rng), any_colour(rng))], look, rng)


def shape_and_colour(look: str, rng: np.random.Generator) -> Question:
    """One thing, and what it is."""
    shown = single(look, rng)
    thing = shown.things[0]
    rule = Names(must={"shape": thing.shape, "colour": thing.colour})
    return Question(part=look, turns=(one_of(WHAT, rng),), media=(shown,), rule=rule)


def colour(look: str, rng: np.random.Generator) -> Question:
    """One thing, and its colour."""
    shown = single(look, rng)
    thing = shown.things[0]
    asked = ("What colour is the {0}?", "What color is the {0}?", "What colour is it?", "Which colour is the shape?")
    rule = Names(must={"colour": thing.colour}, may={"shape": thing.shape})
    return Question(part=look, turns=(one_of(asked, rng).format(thing.shape),), media=(shown,), rule=rule)


def shape(look: str, rng: np.random.Generator) -> Question:
    """One thing, and its shape."""
    shown = single(look, rng)
    thing = shown.things[0]
    asked = ("What shape is it?", "What shape is this?", "Which shape do you see?", "What shape is the {0} thing?")
    rule = Names(must={"shape": thing.shape}, may={"colour": thing.colour})
    return Question(part=look, turns=(one_of(asked, rng).format(thing.colour),), media=(shown,), rule=rule)


def crowd(wanted: str, look: str, rng: np.random.Generator) -> tuple[Scene, int]:
    """A scene of 1 to 6 things, and how many of them have the shape: each number up to 5 is about as likely."""
    if rng.integers(NOTHING_ONE_IN) == 0:
        n, others = 0, int(rng.integers(1, 6))
    else:
        n = int(rng.integers(1, 6))
        others = int(rng.integers(0, MOST - n + 1))
    rest = [name for name in SHAPES if name != wanted]
    kinds = [(wanted, "")] * n + [(one_of(rest, rng), "") for _ in range(others)]
    return scene(kinds, look, rng, largest=0.4), n


def count_one_kind(look: str, rng: np.random.Generator) -> Question:
    """How many of one shape, among others."""
    wanted = any_shape(rng)
    shown, n = crowd(wanted, look, rng)
    asked = ("How many {0} are there?", "How many {0} are there?", "How many {0} do you see?", "Count the {0}.")
    text = one_of(asked, rng).format(PLURALS[wanted])
    return Question(part=look, turns=(text,), media=(shown,), rule=Number(n=n))


def count_all(look: str, rng: np.random.Generator) -> Question:
    """How many things, of any shape."""
    n = int(rng.integers(1, MOST + 1))
    shown = scene([(any_shape(rng), "") for _ in range(n)], look, rng, largest=0.4)
    asked = (
        "How many shapes are there?",
        "How many shapes are there?",
        "How many shapes do you see?",
        "Count the shapes.",
    )
    return Question(part=look, turns=(one_of(asked, rng),), media=(shown,), rule=Number(n=n))


def box(look: str, rng: np.random.Generator) -> Question:
    """Where one of 1 to 4 things is; no other has its shape and colour."""
    shown = apart(int(rng.integers(1, 5)), look, rng)
    target = one_of(shown.things, rng)
    asked = ("Where is the {0}?", "Where is the {0}?", "Find the {0}.", "Show me where the {0} is.")
    text = one_of(asked, rng).format(target.words)
    return Question(part=look, turns=(text,), media=(shown,), rule=Pointed(box=target.box))


def apart(n: int, look: str, rng: np.random.Generator) -> Scene:
    """A scene of things that all differ in shape or colour."""
    while True:
        found = scene([(any_shape(rng), "") for _ in range(n)], look, rng, largest=0.5)
        if len({thing.words for thing in found.things}) == n:
            return found


def number(look: str, rng: np.random.Generator) -> Question:
    """A printed number from 0 to 99."""
    digits = str(int(rng.integers(10)) if rng.random() < 0.3 else int(rng.integers(10, 100)))
    shown = replace(scene([], look, rng), number=digits)
    asked = ("What number is it?", "What number is this?", "Which number do you see?", "What number is in the picture?")
    return Question(part=look, turns=(one_of(asked, rng),), media=(shown,), rule=Digits(digits=digits))


def two_pictures(look: str, rng: np.random.Generator) -> Question:
    """Two pictures of a look: which shows a thing, which has more, whether shape or colour are the same."""
    kind = one_of(("which shows", "which has more", "same shape", "same colour"), rng)
    if kind == "which has more":
        few = int(rng.integers(1, 5))
        many = few + int(rng.integers(1, 6 - few + 1))
        pair = [scene([(any_shape(rng), "") for _ in range(n)], look, rng, largest=0.4) for n in (few, many)]
        return _which("Which picture has more shapes", pair[1], pair[0], rng)
    one, other = any_shape(rng), any_colour(rng)
    same = bool(rng.integers(2))
    if kind == "which shows":
        differ = _different((one, other), rng)
        text = f"Which picture shows {with_article(f'{other} {one}')}"
        return _which(text, scene([(one, other)], look, rng), scene([differ], look, rng), rng)
    if kind == "same shape":
        second = one if same else _another(SHAPES, one, rng)
        pair = [scene([(name, any_colour(rng))], look, rng) for name in (one, second)]
        text = "Do both pictures show the same shape?"
    else:
        second = other if same else _another(COLOURS, other, rng)
        pair = [scene([(any_shape(rng), name)], look, rng) for name in (other, second)]
        text = "Do both shapes have the same colour?"
    rule = Names(must={"yes or no": "yes" if same else "no"})
    return Question(part=kind, turns=(text,), media=tuple(pair), rule=rule)


def _which(text: str, fits: Scene, other: Scene, rng: np.random.Generator) -> Question:
    first = bool(rng.integers(2))
    media = (fits, other) if first else (other, fits)
    rule = Names(must={"place": "first" if first else "second"})
    part = "which has more" if "more" in text else "which shows"
    return Question(part=part, turns=(f"{text}, the first or the second?",), media=media, rule=rule)


def _different(thing: tuple[str, str], rng: np.random.Generator) -> tuple[str, str]:
    while (found := (any_shape(rng), any_colour(rng))) == thing:
        pass
    return found


def _another(names: Sequence[str], name: str, rng: np.random.Generator) -> str:
    return one_of([other for other in names if other != name], rng)


def chinese(look: str, rng: np.random.Generator) -> Question:
    """The same kinds of questions in Chinese."""
    kind = one_of(("what", "colour", "shape", "count one kind", "count all"), rng)
    if kind.startswith("count"):
        wanted = any_shape(rng)
        if kind == "count all":
            n = int(rng.integers(1, MOST + 1))
            shown, text = scene([(any_shape(rng), "") for _ in range(n)], look, rng, largest=0.4), "有几个图形？"
        else:
            (shown, n), text = crowd(wanted, look, rng), f"图中有几个{CHINESE[wanted]}？"
        return Question(part=kind, turns=(text,), media=(shown,), rule=Number(n=n))
    shown = single(look, rng)
    thing = shown.things[0]
    whole = {"shape": thing.shape, "colour": thing.colour}
    text = one_of(
        {"what": ("图中是什么？", "这是什么？"), "colour": ("它是什么颜色？",), "shape": ("它是什么形状？",)}[kind], rng
    )
    rule = Names(must=whole if kind == "what" else {kind: whole[kind]}, may=whole)
    return Question(part=kind, turns=(text,), media=(shown,), rule=rule)
