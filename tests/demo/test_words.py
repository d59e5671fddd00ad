"""The demo model's questions: every task in both languages, nothing unfilled, held-out wordings held out."""

import re
from pathlib import Path

import numpy as np
import pytest

from demo.answers import (
    UNKNOWN_ANSWER,
    Language,
    plural,
    say_box,
    say_plural,
    say_thing,
    say_things,
)
from demo.templates import parse, read
from demo.words import LANGUAGES, TASKS, Words
from tests.tables import each_of

pytestmark = pytest.mark.slow

MEDIUM = re.compile(
    r"picture|image|photo|drawing|figure|screenshot|pic|illustration|sketch|snapshot|graphic"
    r"|video|clip|animation|movie|footage|film|gif|sound|audio|recording|track|sample|图|照片|画|视频|短片|动画|片段|影片|声音|音频|录音",
    re.IGNORECASE,
)
SINGLE = ("shape", "colour", "thing", "count", "motion", "moving_thing", "beeps", "pitch", "sweep", "number", "where")


@pytest.fixture(scope="module")
def words() -> Words:
    return Words.load()


@pytest.fixture(scope="module")
def trained(words: Words) -> dict[tuple[Language, str], set[str]]:
    """A hundred ways of each wording of every task, but those held out."""
    rng = np.random.default_rng(3)
    return {
        (language, task): {
            template.expand(rng).rstrip("?？.")
            for template in words.questions[language, task, False, False]
            for _ in range(100)
        }
        for language in LANGUAGES
        for task in TASKS
    }


def slots(language: Language) -> dict[str, str]:
    return {
        "thing": say_thing("star", "orange", language),
        "what": say_plural("cross", "red", language),
        "shape": "star",
        "colour": "orange",
        "keys": "shape and colour",
    }


@each_of("language", LANGUAGES)
@each_of("task", TASKS)
def test_every_task_asks(words: Words, task: str, language: Language) -> None:
    rng = np.random.default_rng(1)
    for held_out in (False, True):
        asked = [words.ask(rng, task, language, held_out=held_out, named=False, **slots(language)) for _ in range(200)]
        assert all(text.strip() and not re.search(r"[{}\[\]|$@]|  ", text) for text in asked)
        assert len(set(asked)) > 10


@each_of("language", LANGUAGES)
@each_of("task", SINGLE)
def test_named_questions_name_the_medium(words: Words, task: str, language: Language) -> None:
    rng = np.random.default_rng(2)
    for held_out in (False, True):
        for _ in range(150):
            text = words.ask(rng, task, language, held_out=held_out, named=True, **slots(language))
            assert MEDIUM.search(text) or language == "en"  # a typo may fall into the word
        named = words.questions[language, task, held_out, True]
        assert all(MEDIUM.search(template.expand(rng)) for template in named for _ in range(5))


@each_of("language", LANGUAGES)
def test_held_out_wordings_are_not_trained_on(
    words: Words, trained: dict[tuple[Language, str], set[str]], language: Language
) -> None:
    rng = np.random.default_rng(3)
    for task in TASKS:
        held = words.questions[language, task, True, False]
        assert 0.06 < len(held) / (len(words.questions[language, task, False, False]) + len(held)) < 0.3
        assert not trained[language, task] & {
            template.expand(rng).rstrip("?？.") for template in held for _ in range(50)
        }, task
    for side in (words.talk, words.outside):
        seen = {template.expand(rng) for template in side[language, False] for _ in range(50)}
        assert not seen & {template.expand(rng) for template in side[language, True] for _ in range(50)}


def test_no_wording_belongs_to_two_tasks_of_one_medium(trained: dict[tuple[Language, str], set[str]]) -> None:
    media = (
        ("shape", "colour", "thing", "shape_of", "colour_of", "count", "count_of", "exists", "where", "number", "json"),
        ("same_shape", "same_colour", "same_thing", "more", "which_has"),
        ("motion", "moving_thing"),
        ("beeps", "pitch", "sweep"),
    )
    for language in LANGUAGES:
        for tasks in media:
            owner: dict[str, str] = {}
            for task in tasks:
                for text in trained[language, task]:
                    assert owner.setdefault(text, task) == task, text


def test_equal_generators_give_equal_text(words: Words) -> None:
    first = list(words.corpus(np.random.default_rng(5), 300))
    assert first == list(Words.load().corpus(np.random.default_rng(5), 300))
    assert first != list(words.corpus(np.random.default_rng(6), 300))
    assert not any(re.search(r"\{[a-z_]*\}", line) for line in first)


def test_small_talk_and_unknown(words: Words) -> None:
    rng = np.random.default_rng(7)
    answers = {language: set[str]() for language in LANGUAGES}
    for language in LANGUAGES:
        for _ in range(400):
            text, answer = words.small_talk(rng, language)
            assert text and answer and len(answer.split()) <= 14
            answers[language].add(answer)
        assert len({words.unknown(rng, language) for _ in range(300)}) > 150
        assert UNKNOWN_ANSWER[language] not in answers[language]
    assert "I am the demo model of Pixelferry." in answers["en"]


def test_boxes_are_rounded_and_words_lose_their_article() -> None:
    assert say_box("the red circle", (4.9, 5, 994.9, 1000), "en") == "<ref>red circle</ref><box>(0,10),(990,990)</box>"
    assert say_box("圆形", (-3, 111, 116, 320), "zh") == "<ref>圆形</ref><box>(0,110),(120,320)</box>"


def test_words_of_answers() -> None:
    assert say_things([("circle", "red"), ("star", "blue")], "en") == "red circle, blue star"
    assert say_things([("circle", "red"), ("star", "blue")], "zh") == "红色圆形，蓝色星形"
    assert plural("red cross", "en") == "red crosses"
    assert say_plural(None, "red", "en") == "red shapes"
    assert say_thing(None, "red", "en") == "red one"


def test_articles_suit_the_word(words: Words) -> None:
    rng = np.random.default_rng(8)
    asked = " ".join(words.ask(rng, "exists", "en", thing="orange star").lower() for _ in range(300))
    assert "an orange star" in asked and "a orange" not in asked


def test_mistakes_in_templates_are_named(tmp_path: Path, words: Words) -> None:
    for wrong in ("[a|b", "a)", "{thing", "$nothing"):
        with pytest.raises(ValueError):
            parse(wrong, {})
    path = tmp_path / "bad.txt"
    path.write_text("== shape\nwhat\n(oh\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"bad\.txt:3"):
        read(path)
    with pytest.raises(ValueError, match="thing"):
        words.ask(np.random.default_rng(9), "where", "en")
