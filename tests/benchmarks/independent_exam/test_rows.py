"""The questions of every row: the same by the same seed, things apart and large enough, rules that their words fit."""

from functools import cache
from itertools import combinations

import pytest

from benchmarks.independent_exam.outlines import box_of
from benchmarks.independent_exam.palettes import stands_out
from benchmarks.independent_exam.question import Question, part_of
from benchmarks.independent_exam.rows import ROWS, question
from benchmarks.independent_exam.scenes import LEAST, Scene
from benchmarks.independent_exam.scoring import Called, Digits, Names, Number, Object, Pointed
from benchmarks.independent_exam.words import PLURALS
from tests.tables import each_of

pytestmark = pytest.mark.slow

EACH = 20
SEED = 5  # not the exam's


@cache
def questions(row: str) -> list[Question]:
    return [question(row, n, SEED) for n in range(EACH)]


@each_of("row", ROWS)
def test_a_seed_gives_the_same_questions(row: str) -> None:
    asked = [str(one) for one in questions(row)[:5]]
    assert asked == [str(question(row, n, SEED)) for n in range(5)]
    assert asked[3] != str(question(row, 3, SEED + 1))
    assert asked[3] != asked[4]


@each_of("row", ROWS)
def test_things_are_apart_large_enough_and_seen(row: str) -> None:
    for scene in (medium for asked in questions(row) for medium in asked.media if isinstance(medium, Scene)):
        short = min(scene.width, scene.height)
        for thing in scene.things:
            left, top, right, bottom = thing.box
            assert left >= 0 and top >= 0 and right <= scene.width and bottom <= scene.height
            assert min(right - left, bottom - top) >= LEAST * short
            assert stands_out(thing.rgb, scene.ground)
        for one, other in combinations([box_of(thing.parts, thing.stroke / 2) for thing in scene.things], 2):
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_counts_are_those_of_the_scene() -> None:
    for asked in questions("count one kind"):
        wanted = next(shape for shape, plural in PLURALS.items() if plural in asked.turns[0])
        (scene,) = asked.media
        assert isinstance(scene, Scene) and isinstance(asked.rule, Number)
        assert sum(thing.shape == wanted for thing in scene.things) == asked.rule.n
    for asked in questions("count all"):
        (scene,) = asked.media
        assert isinstance(scene, Scene) and isinstance(asked.rule, Number)
        assert len(scene.things) == asked.rule.n


def test_a_box_is_that_of_the_one_thing_that_was_named() -> None:
    for asked in questions("box"):
        (scene,) = asked.media
        assert isinstance(scene, Scene) and isinstance(asked.rule, Pointed)
        assert [thing.box for thing in scene.things if thing.words in asked.turns[0]] == [asked.rule.box]


def test_pairs_are_told_right() -> None:
    for asked in questions("two pictures"):
        first, second = asked.media
        assert isinstance(first, Scene) and isinstance(second, Scene) and isinstance(asked.rule, Names)
        one, other = first.things[0], second.things[0]
        if asked.part == "which has more":
            assert asked.rule.must["place"] == ("first" if len(first.things) > len(second.things) else "second")
        elif asked.part == "which shows":
            assert asked.rule.must["place"] == ("first" if one.words in asked.turns[0] else "second")
            assert (one.words in asked.turns[0]) != (other.words in asked.turns[0])
        else:
            same = one.shape == other.shape if asked.part == "same shape" else one.colour == other.colour
            assert asked.rule.must == {"yes or no": "yes" if same else "no"}


def test_a_clip_moves_its_way() -> None:
    for asked in questions("motion"):
        clip = asked.media[0]
        assert not isinstance(clip, Scene) and isinstance(asked.rule, Names)
        x, y = clip.travel  # type: ignore[union-attr]
        assert asked.rule.must["way"] == (("right" if x > 0 else "left") if x else ("down" if y > 0 else "up"))


def test_a_sound_has_so_many_tones_and_is_a_file() -> None:
    for asked in questions("beeps")[:5]:
        (sound,) = asked.media
        assert isinstance(asked.rule, Number)
        assert sum(tone.first > 0 for tone in sound.tones) == asked.rule.n  # type: ignore[union-attr]
        assert part_of(sound)["audio"].startswith("data:audio/wav;base64,UklGR")  # RIFF


def test_tools_fit_half_of_the_time() -> None:
    asked = questions("tool")
    assert all(isinstance(one.rule, Called) and one.tools for one in asked)
    fits = [one for one in asked if one.part == "fits"]
    assert EACH / 4 < len(fits) < EACH * 3 / 4
    for one in fits:
        assert isinstance(one.rule, Called) and PLURALS[one.rule.arguments["shape"]] in one.turns[0]


def test_single_things_have_the_rule_of_their_thing() -> None:
    for asked in questions("JSON"):
        thing = asked.media[0].things[0]  # type: ignore[union-attr]
        assert asked.rule == Object(shape=thing.shape, colour=thing.colour)
    for asked in questions("number"):
        assert asked.rule == Digits(digits=asked.media[0].number)  # type: ignore[union-attr]
