"""What is asked has one right answer, and that is the one given: derived again here from what the picture holds."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
from PIL import Image

from demo import tasks
from demo.answers import CHINESE, COLOURS, SHAPES, UNKNOWN_ANSWER, Direction, Language
from demo.clips import moving
from demo.pictures import Picture, Thing, draw_number, draw_scene
from demo.sounds import Sound, beeps, silence, sweep, tone
from demo.tasks import Asked, Asker
from demo.words import LANGUAGES, Words
from tests.tables import each_of

pytestmark = pytest.mark.slow

DIRECTIONS: tuple[Direction, ...] = ("left", "right", "up", "down")
WORDS = Words.load()
BOX = re.compile(r"<ref>(.+)</ref><box>\((\d+),(\d+)\),\((\d+),(\d+)\)</box>")
ENGLISH = {chinese: word for word, chinese in CHINESE.items()}


@dataclass(slots=True)
class Plain:
    """Stands in for Words: keeps what a question would be filled with."""

    asked: list[dict[str, str]] = field(default_factory=list)
    manner: list[tuple[str, str, bool, bool]] = field(default_factory=list)

    def ask(
        self, rng: np.random.Generator, task: str, language: Language, *, held_out: bool, named: bool, **slots: str
    ) -> str:
        self.asked.append(slots)
        self.manner.append((task, language, held_out, named))
        return task


def asker(rng: np.random.Generator, language: Language, plain: Plain) -> Asker:
    return Asker(rng=rng, words=cast(Words, plain), language=language)


def english(word: str, language: Language) -> str:
    """The English of a word of an answer; numbers are the same."""
    return word if language == "en" else ENGLISH.get(word, word)


def parse(text: str, language: Language) -> tuple[str | None, str | None]:
    """(shape, colour) that a phrase names."""
    shapes = {shape: shape if language == "en" else CHINESE[shape] for shape in SHAPES}
    colours = {colour: colour if language == "en" else CHINESE[colour] for colour in COLOURS}
    found = [[name for name, said in names.items() if said in text] for names in (shapes, colours)]
    # "red" is no part of another colour's name, nor is a shape of another's
    assert all(len(each) <= 1 for each in found), text
    return found[0][0] if found[0] else None, found[1][0] if found[1] else None


def fits(things: Sequence[Thing], shape: str | None, colour: str | None) -> list[Thing]:
    return [t for t in things if shape in (None, t.shape) and colour in (None, t.colour)]


def check_picture(picture: Picture, asked: Asked, slots: dict[str, str]) -> None:
    """Raise where the answer is not the one that follows from the picture."""
    things, language = picture.things, asked.language
    answer = english(asked.answer, language)
    shapes, colours = {t.shape for t in things}, {t.colour for t in things}
    if asked.task == "count":
        assert answer == str(len(things))
    elif asked.task == "count_of":
        wanted = parse(slots["what"], language)
        assert wanted != (None, None) and answer == str(len(fits(things, *wanted)))
    elif asked.task == "exists":
        shape, colour = parse(slots["thing"], language)
        assert shape is not None and answer == ("yes" if fits(things, shape, colour) else "no")
    elif asked.task == "shape":
        assert {answer} == shapes
    elif asked.task == "colour":
        assert {answer} == colours
    elif asked.task == "shape_of":
        (thing,) = fits(things, None, slots["colour"])
        assert answer == thing.shape and len(things) > 1
    elif asked.task == "colour_of":
        (thing,) = fits(things, slots["shape"], None)
        assert answer == thing.colour and len(things) > 1
    elif asked.task == "thing":
        said = [parse(part, language) for part in re.split(", |，", asked.answer)]
        middle = {id(t): t.box[0] + t.box[2] for t in things}
        assert said == [(t.shape, t.colour) for t in sorted(things, key=lambda t: middle[id(t)])]
    elif asked.task == "json":
        check_json(things, asked, slots)
    else:
        assert asked.task == "where"
        check_box(picture, asked, slots)


def check_json(things: Sequence[Thing], asked: Asked, slots: dict[str, str]) -> None:
    """The keys that were named, in their order, and what is true of all things."""
    said = json.loads(asked.answer)
    assert [part.strip('" ') for part in re.split(r"、|,| and |和", slots["keys"])] == list(said)
    wanted = {"shape": {t.shape for t in things}, "colour": {t.colour for t in things}, "count": {len(things)}}
    wanted["color"] = wanted["colour"]
    names = {"形状": "shape", "颜色": "colour", "数量": "count"}
    for name, value in said.items():
        value = ENGLISH[value] if name in names and value in ENGLISH else value
        assert wanted[names.get(name, name)] == {value}


def check_box(picture: Picture, asked: Asked, slots: dict[str, str]) -> None:
    match = BOX.fullmatch(asked.answer)
    assert match is not None and match[1] == slots["thing"] and asked.box is not None
    wanted = parse(slots["thing"], asked.language)
    assert wanted != (None, None)
    (thing,) = fits(picture.things, *wanted)
    width, height = picture.image.size
    exact = np.array(thing.box) / (width, height, width, height) * 1000
    np.testing.assert_allclose(asked.box, exact)
    said = np.array([int(number) for number in match.groups()[1:]])
    assert (said % 10 == 0).all() and (np.abs(said - exact.clip(0, 990)) <= 5.01).all()


@pytest.mark.parametrize("language", LANGUAGES)
def test_answers_about_pictures_are_true(language: Language) -> None:
    rng = np.random.default_rng(0)
    found: Counter[str] = Counter()
    for number in range(250):
        picture = draw_scene(rng, (120, 90), number % 7)
        for _ in range(4):
            plain = Plain()
            asked = tasks.about_picture(asker(rng, language, plain), picture)
            check_picture(picture, asked, plain.asked[-1])
            assert plain.manner == [(asked.task, language, False, False)]
            assert (asked.box is not None) == (asked.task == "where")
            found[asked.task] += 1
    assert set(found) == {
        "count",
        "count_of",
        "exists",
        "shape",
        "colour",
        "thing",
        "where",
        "shape_of",
        "colour_of",
        "json",
    }
    assert min(found.values()) >= 15


@pytest.mark.parametrize("task", ["exists", "count_of"])
def test_yes_and_no_and_none_are_all_asked_for(task: str) -> None:
    rng = np.random.default_rng(1)
    picture = draw_scene(rng, (120, 90), 4)
    found = {tasks.about_picture(asker(rng, "en", Plain()), picture, (task,)).answer for _ in range(60)}
    assert found >= ({"yes", "no"} if task == "exists" else {"0", "1"})


def still(*things: tuple[str, str, tuple[float, float, float, float]]) -> Picture:
    made = tuple(Thing(shape=shape, colour=colour, box=box) for shape, colour, box in things)
    return Picture(image=Image.new("RGB", (200, 100)), things=made, number=None)


def test_things_have_an_order_only_where_they_lie_beside_each_other() -> None:
    left, right = ("star", "red", (10.0, 10.0, 40.0, 40.0)), ("ring", "blue", (110.0, 50.0, 140.0, 80.0))
    above = ("cross", "white", (14.0, 60.0, 44.0, 90.0))  # its middle is 2 % of the width from that of the star
    asked = tasks.about_picture(asker(np.random.default_rng(0), "en", Plain()), still(right, left), ("thing",))
    assert asked.answer == "red star, blue ring"
    with pytest.raises(ValueError):
        tasks.about_picture(asker(np.random.default_rng(0), "en", Plain()), still(left, above), ("thing",))


def test_where_is_asked_of_what_can_be_told_apart_only() -> None:
    """Two red stars beside a blue one: "the blue one" is known, "the star" and "the red star" are not."""
    picture = still(
        ("star", "red", (0, 0, 20, 20)), ("star", "red", (50, 0, 70, 20)), ("star", "blue", (100, 20, 150, 70))
    )
    rng = np.random.default_rng(0)
    answers = {tasks.about_picture(asker(rng, "en", Plain()), picture, ("where",)).answer for _ in range(40)}
    assert all("blue" in answer and answer.endswith("<box>(500,200),(750,700)</box>") for answer in answers)
    twins = still(("star", "red", (0, 0, 20, 20)), ("star", "red", (50, 0, 70, 20)))
    asked = tasks.about_picture(asker(rng, "en", Plain()), twins, ("where",))
    assert (asked.task, asked.answer, asked.box) == ("count", "2", None)


@pytest.mark.parametrize("language", LANGUAGES)
def test_answers_about_pairs_are_true(language: Language) -> None:
    rng = np.random.default_rng(2)
    found: Counter[str] = Counter()
    for number in range(150):
        counts = (1, 1) if number % 2 else (int(rng.integers(0, 4)), int(rng.integers(0, 4)))
        one, two = (draw_scene(rng, (80, 80), n) for n in counts)
        for _ in range(4):
            plain = Plain()
            asked = tasks.about_pair(asker(rng, language, plain), one, two)
            answer, a, b = english(asked.answer, language), one.things, two.things
            if asked.task == "more":
                assert answer == ("same" if len(a) == len(b) else "first" if len(a) > len(b) else "second")
            elif asked.task == "which_has":
                wanted = parse(plain.asked[-1]["thing"], language)
                assert None not in wanted and bool(fits(a, *wanted)) != bool(fits(b, *wanted))
                assert answer == ("first" if fits(a, *wanted) else "second")
            else:
                alike = {"same_shape": a[0].shape == b[0].shape, "same_colour": a[0].colour == b[0].colour}
                alike["same_thing"] = alike["same_shape"] and alike["same_colour"]
                assert len(a) == len(b) == 1 and answer == ("yes" if alike[asked.task] else "no")
            found[asked.task] += 1
    assert set(found) == {"more", "which_has", "same_shape", "same_colour", "same_thing"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_answers_about_numbers_clips_and_sounds_are_true(language: Language) -> None:
    rng = np.random.default_rng(3)
    one = asker(rng, language, Plain())
    assert tasks.about_number(one, draw_number(rng, (100, 80), "407")).answer == "407"
    for direction in DIRECTIONS:
        clip = moving(rng, direction, (128, 128), 1.0)
        assert english(tasks.about_clip(one, clip, ("motion",)).answer, language) == direction
        assert parse(tasks.about_clip(one, clip, ("moving_thing",)).answer, language) == (clip.shape, clip.colour)
    made: list[tuple[Sound, str, str]] = [
        (tone(rng, "high"), "pitch", "high"), (tone(rng, "low"), "pitch", "low"),
        (sweep(rng, "rising"), "sweep", "rising"),
        (sweep(rng, "falling"), "sweep", "falling"), (silence(rng), "beeps", "0"), (beeps(rng, 3), "beeps", "3"),
    ]  # fmt: skip
    for sound, task, answer in made:
        asked = tasks.about_sound(one, sound)
        assert (asked.task, english(asked.answer, language)) == (task, answer)


@each_of("language", LANGUAGES)
@each_of("make", [tasks.unknown, tasks.without_medium])
def test_what_cannot_be_known(make: Callable[[Asker], Asked], language: Language) -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        asked = make(Asker(rng=rng, words=WORDS, language=language))
        assert asked.answer == UNKNOWN_ANSWER[language] and asked.language == language
        assert asked.question and "{" not in asked.question


@pytest.mark.parametrize("language", LANGUAGES)
def test_small_talk_has_an_answer_of_its_own(language: Language) -> None:
    rng = np.random.default_rng(5)
    made = [tasks.small_talk(Asker(rng=rng, words=WORDS, language=language)) for _ in range(30)]
    assert all(asked.task == "small_talk" and asked.answer for asked in made)
    assert len({asked.answer for asked in made}) > 3


def test_the_medium_is_named_and_held_out_wordings_are_used_where_that_is_wanted() -> None:
    rng = np.random.default_rng(6)
    plain = Plain()
    picture = draw_scene(rng, (100, 100), 1)
    told = Asker(rng=rng, words=cast(Words, plain), language="en", held_out=True, named=True)
    tasks.about_picture(told, picture, ("shape",))
    assert plain.manner == [("shape", "en", True, True)]
    medium = re.compile(r"picture|image|photo|drawing|figure|pic|screenshot|illustration", re.IGNORECASE)
    named = [
        tasks.about_picture(Asker(rng=rng, words=WORDS, language="en", named=True), picture, ("shape",)).question
        for _ in range(60)
    ]
    # A slip of the pen may spoil the word, rarely.
    assert np.mean([bool(medium.search(question)) for question in named]) > 0.9
