"""The language of the demo model: questions in many wordings, small talk, questions it cannot answer.

It covers templates, slots and how people write (no question mark, capitals, a typo).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from demo.answers import (
    CHINESE,
    COLOURS,
    DIRECTIONS,
    SHAPES,
    UNKNOWN_ANSWER,
    Language,
    plural,
    say,
    say_box,
    say_count,
    say_thing,
    say_things,
)
from demo.templates import Template, read

LANGUAGES: tuple[Language, ...] = ("en", "zh")
# Task -> which words about the form of the answer may go with its question (sections "prefix ..." and "suffix ...").
_FORM = MappingProxyType(
    dict.fromkeys(("shape", "colour", "shape_of", "colour_of", "motion", "pitch", "sweep", "more", "which_has"), "word")
    | dict.fromkeys(("count", "count_of", "number", "beeps"), "number")
    | dict.fromkeys(("exists", "same_shape", "same_colour", "same_thing"), "yesno")
    | dict.fromkeys(("thing", "where", "moving_thing", "json"), "any")
)
TASKS: tuple[str, ...] = tuple(_FORM)
# Other words for the same thing that a question may use; `where` repeats the question's words and has none of these.
_SYNONYMS = MappingProxyType(
    {
        "en": (
            ("crosses", "plus signs"),
            ("cross", "plus sign"),
            ("purple", "violet"),
            ("circle", "disc"),
            ("ring", "hoop"),
        ),
        "zh": (
            *(("正方形", "方块"), ("正方形", "方形"), ("星形", "五角星"), ("星形", "星星"), ("三角形", "三角")),
            *(("十字", "十字形"), ("圆环", "环形"), ("圆形", "圆"), ("橙色", "橘色"), ("红色", "红"), ("蓝色", "蓝")),
        ),
    }
)
# The medium that a task is about; tasks that compare pictures have no other medium beside them.
_MEDIUM = MappingProxyType(
    dict.fromkeys(("shape", "colour", "shape_of", "colour_of", "count", "count_of"), "picture")
    | dict.fromkeys(("number", "exists", "thing", "where", "json"), "picture")
    | dict.fromkeys(("motion", "moving_thing"), "clip")
    | dict.fromkeys(("beeps", "pitch", "sweep"), "sound")
)
_SLOT = re.compile(r"\{([a-z_]+)\}")
_ARTICLE = re.compile(r"\b([aA]) (?=[aei]|o(?!ne))")
_WORD = re.compile(r"(?<![{<\w'])[a-z]{4,}(?![}>\w'])")
_QUESTION = ("?", "？")
_END = (*_QUESTION, ".", "!", "。", "！", "~", ":", "：")


@dataclass(frozen=True, slots=True)
class Words:
    """All templates, parsed once. Equal generators give equal text."""

    # (language, section, held_out, named) -> templates
    questions: MappingProxyType[tuple[Language, str, bool, bool], tuple[Template, ...]]
    talk: MappingProxyType[tuple[Language, bool], tuple[Template, ...]]
    outside: MappingProxyType[tuple[Language, bool], tuple[Template, ...]]
    extras: MappingProxyType[tuple[Language, str], tuple[Template, ...]]

    @classmethod
    def load(cls, folder: Path | None = None) -> "Words":
        """Read the four files of a folder, this module's own unless told. Raises ValueError that names the line."""
        folder = folder or Path(__file__).parent
        questions: dict[tuple[Language, str, bool, bool], tuple[Template, ...]] = {}
        extras: dict[tuple[Language, str], tuple[Template, ...]] = {}
        for language in LANGUAGES:
            sections = read(folder / f"questions_{language}.txt")
            for name, found in sections.items():
                if name.split()[0] in ("prefix", "suffix", "lead"):
                    extras[language, name] = found
                    continue
                if name not in TASKS:
                    raise ValueError(f"questions_{language}.txt: no task {name!r}")
                for held in (False, True):
                    side = tuple(template for template in found if template.held_out == held)
                    questions[language, name, held, False] = side
                    questions[language, name, held, True] = tuple(template for template in side if template.named)
        return cls(
            questions=MappingProxyType(questions),
            talk=MappingProxyType(_by_language(read(folder / "small_talk.txt"))),
            outside=MappingProxyType(_by_language(read(folder / "unknown.txt"))),
            extras=MappingProxyType(extras),
        )

    def ask(
        self,
        rng: np.random.Generator,
        task: str,
        language: Language,
        *,
        held_out: bool = False,
        named: bool = False,
        **slots: str,
    ) -> str:
        """A question of a task.

        Slots are words of the language (`say_thing`, `say_plural` ...) or English names of shapes and colours:
        shape_of takes `colour`, colour_of takes `shape`, count_of takes `what` (plural), exists, where and which_has
        take `thing`. `held_out` takes a template that no training question comes from, `named` says which medium is
        meant (picture, clip or sound). Raises ValueError for an unknown task or a missing slot.
        """
        if task not in _FORM:
            raise ValueError(f"no task {task!r}")
        templates = self.questions[language, task, held_out, False]
        lead = ""
        if named and task in _MEDIUM:
            naming = self.questions[language, task, held_out, True]
            if naming and rng.random() < 0.6:
                templates = naming
            else:
                lead = _pick(rng, self.extras[language, f"lead {_MEDIUM[task]}"]).expand(rng)
        template = _pick(rng, templates)
        text = template.expand(rng)
        if lead and not template.named:
            text = f"{lead} {text}" if language == "en" else lead + text
        text = self._manner(rng, text, language, _FORM[task])
        return _case(rng, _fill(text, _forms(rng, task, language, slots), task))

    def small_talk(self, rng: np.random.Generator, language: Language, held_out: bool = False) -> tuple[str, str]:
        """Something said without a medium, and its answer."""
        template = _pick(rng, self.talk[language, held_out])
        return _case(rng, self._mistakes(rng, template.expand(rng), language)), template.answer

    def unknown(self, rng: np.random.Generator, language: Language, held_out: bool = False) -> str:
        """A question that the model cannot answer; its answer is UNKNOWN_ANSWER[language]."""
        text = _pick(rng, self.outside[language, held_out]).expand(rng)
        return _case(rng, self._manner(rng, text, language, "any"))

    def _manner(self, rng: np.random.Generator, text: str, language: Language, form: str) -> str:
        """Politeness and wishes around a question, and the slips of somebody in a hurry."""
        question = text.endswith(_QUESTION)
        text = self._mistakes(rng, text, language)
        chance = rng.random()
        if chance < 0.16:
            kind = form if chance < 0.05 and form != "any" else "question" if question else "request"
            lead = _pick(rng, self.extras[language, f"prefix {kind}"]).expand(rng)
            text = f"{lead} {text}" if language == "en" else lead + text
        elif chance > 0.8:
            kind = form if chance > 0.88 and form != "any" else "any"
            tail = _pick(rng, self.extras[language, f"suffix {kind}"]).expand(rng)
            if language == "zh":
                return text + ("" if text.endswith(_END) else "，") + tail
            gap = " " if text.endswith(_END) else ", " if rng.random() < 0.6 else ". "
            text = text + gap + (tail.capitalize() + "." if gap != ", " and rng.random() < 0.6 else tail)
        return text

    def _mistakes(self, rng: np.random.Generator, text: str, language: Language) -> str:
        """At times the mark at the end goes or comes, and rarely a letter is lost or two are swapped."""
        if text.endswith(_QUESTION):
            if rng.random() < 0.25:
                text = text[:-1]
        elif not text.endswith(_END) and rng.random() < 0.3:
            text += "." if language == "en" else "。"
        if language == "en" and rng.random() < 0.04:
            text = _typo(rng, text)
        return text

    def corpus(self, rng: np.random.Generator, count: int) -> Iterator[str]:
        """`count` lines of questions and answers of every kind in both languages, to learn a vocabulary from."""
        for _ in range(count):
            language = LANGUAGES[int(rng.random() * 2)]
            chance = rng.random()
            if chance < 0.15:
                yield " ".join(self.small_talk(rng, language))
            elif chance < 0.3:
                yield f"{self.unknown(rng, language)} {UNKNOWN_ANSWER[language]}"
            else:
                yield self._exchange(rng, TASKS[int(rng.random() * len(TASKS))], language)

    def _exchange(self, rng: np.random.Generator, task: str, language: Language) -> str:
        """A question of a task with random slots and an answer of the right kind, true of nothing."""
        shapes, colours = rng.permutation(np.array(SHAPES)).tolist(), rng.permutation(np.array(COLOURS)).tolist()
        thing = say_thing(shapes[0], colours[0], language)
        slots = {
            "keys": f"shape, {colours[0]}",
            "thing": thing,
            "what": plural(thing, language),
            "shape": shapes[0],
            "colour": colours[0],
        }
        pairs = list(zip(shapes, colours, strict=False))[: 1 + int(rng.random() * 3)]
        box = rng.uniform(0, 1000, 4).tolist()
        answers = {
            "where": say_box(thing, (box[0], box[1], box[2], box[3]), language),
            "thing": say_things(pairs, language),
            "json": f'{{"shape": "{shapes[0]}"}}',
            "moving_thing": thing,
            "number": str(int(10 ** (rng.random() * 4))),
            "motion": say(_choose(rng, DIRECTIONS), language),
            "pitch": say(_choose(rng, ("high", "low")), language),
            "sweep": say(_choose(rng, ("rising", "falling")), language),
            "more": say(_choose(rng, ("first", "second", "same")), language),
            "which_has": say(_choose(rng, ("first", "second")), language),
            "shape": say(shapes[0], language),
            "shape_of": say(shapes[0], language),
            "colour": say(colours[0], language),
            "colour_of": say(colours[0], language),
        }
        by_form = (
            say_count(int(rng.random() * 10)) if _FORM[task] == "number" else say(_choose(rng, ("yes", "no")), language)
        )
        return f"{self.ask(rng, task, language, **slots)} {answers.get(task, by_form)}"


def _by_language(sections: dict[str, tuple[Template, ...]]) -> dict[tuple[Language, bool], tuple[Template, ...]]:
    return {
        (language, held): tuple(template for template in sections[language] if template.held_out == held)
        for language in LANGUAGES
        for held in (False, True)
    }


def _pick(rng: np.random.Generator, templates: tuple[Template, ...]) -> Template:
    return templates[int(rng.random() * len(templates))]


def _choose(rng: np.random.Generator, words: tuple[str, ...]) -> str:
    return words[int(rng.random() * len(words))]


def _forms(rng: np.random.Generator, task: str, language: Language, slots: dict[str, str]) -> dict[str, str]:
    """The slots in the language, and the plural and article forms that templates also ask for."""
    forms = {name: say(word, language) if word in CHINESE else word for name, word in slots.items()}
    if task != "where" and rng.random() < 0.12:
        for word, other in _SYNONYMS[language]:
            if rng.random() < 0.5:
                forms = {name: value.replace(word, other) for name, value in forms.items()}
    if "thing" in forms:
        forms["things"] = plural(forms["thing"], language)
        forms["a_thing"] = f"a {forms['thing']}"
    return forms


def _fill(text: str, forms: dict[str, str], task: str) -> str:
    """The text with its slots filled and "a" before a vowel made "an"."""
    try:
        return _ARTICLE.sub(r"\1n ", _SLOT.sub(lambda match: forms[match[1]], text))
    except KeyError as error:
        raise ValueError(f"a question of task {task!r} needs the slot {error}") from None


def _case(rng: np.random.Generator, text: str) -> str:
    """Mostly a capital first, often none at all, rarely only capitals."""
    chance = rng.random()
    if chance < 0.58 or "<" in text:
        return text[:1].upper() + text[1:]
    return text.upper() if chance > 0.985 else text.lower()


def _typo(rng: np.random.Generator, text: str) -> str:
    """One word (no slot, no tag) loses a letter or has two swapped."""
    words = list(_WORD.finditer(text))
    if not words:
        return text
    word = words[int(rng.random() * len(words))]
    at = word.start() + 1 + int(rng.random() * (word.end() - word.start() - 2))
    swapped = text[at + 1] + text[at] if rng.random() < 0.5 else text[at + 1]
    return text[:at] + swapped + text[at + 2 :]
