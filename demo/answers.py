"""The words of answers in both languages. Knows names and their translations, not questions or pictures."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Literal, get_args

Language = Literal["en", "zh"]
Direction = Literal["left", "right", "up", "down"]

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "black", "white")
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

CHINESE = MappingProxyType(
    dict(zip(SHAPES, ("圆形", "正方形", "三角形", "星形", "十字", "圆环"), strict=True))
    | dict(zip(COLOURS, ("红色", "绿色", "蓝色", "黄色", "紫色", "橙色", "黑色", "白色"), strict=True))
    | dict(zip(DIRECTIONS, ("向左", "向右", "向上", "向下"), strict=True))
    | {"yes": "是", "no": "否", "first": "第一张", "second": "第二张", "same": "一样"}
    | {"high": "高", "low": "低", "rising": "上升", "falling": "下降"}
)
UNKNOWN_ANSWER = MappingProxyType[Language, str]({"en": "I do not know.", "zh": "我不知道。"})


def say(word: str, language: Language) -> str:
    """A word of an answer ("circle", "red", "left", "yes", "first", "rising") in the language. KeyError: no such."""
    chinese = CHINESE[word]
    return word if language == "en" else chinese


def say_yes(truth: bool, language: Language) -> str:
    """ "yes" or "no", "是" or "否"."""
    return say("yes" if truth else "no", language)


def say_count(count: int) -> str:
    """Digits, in both languages."""
    return str(count)


def say_thing(shape: str | None, colour: str | None, language: Language, *, noun: str = "") -> str:
    """ "red circle", "circle" or "red one"; "红色圆形", "圆形" or "红色图形".

    `noun` stands for the shape where only the colour is known ("shape", "object", "one"; "图形", "物体").
    """
    last = say(shape, language) if shape else noun or ("one" if language == "en" else "图形")
    if not colour:
        return last
    return f"{colour} {last}" if language == "en" else say(colour, language) + last


def say_things(things: Sequence[tuple[str, str]], language: Language) -> str:
    """Several (shape, colour) in their order: "red circle, blue star" or "红色圆形，蓝色星形"."""
    return (", " if language == "en" else "，").join(say_thing(shape, colour, language) for shape, colour in things)


def plural(thing: str, language: Language) -> str:
    """ "red circles" of "red circle"; Chinese has no plural."""
    if language == "zh":
        return thing
    return f"{thing}es" if thing.endswith("s") else f"{thing}s"


def say_plural(shape: str | None, colour: str | None, language: Language, *, noun: str = "") -> str:
    """What is counted: "circles", "red circles", "red shapes"; "圆形", "红色圆形", "红色图形"."""
    return plural(say_thing(shape, colour, language, noun=noun or ("shape" if language == "en" else "图形")), language)


def say_box(words: str, box: tuple[float, float, float, float], language: Language) -> str:
    """The thing's words (an English article is dropped) and its box (x1, y1, x2, y2), 0..1000 of the picture's sides.

    Every coordinate becomes the nearest multiple of 10 in 0..990.
    """
    if language == "en":
        words = words.removeprefix("the ").removeprefix("an ").removeprefix("a ")
    x1, y1, x2, y2 = (min(max(int(value / 10 + 0.5) * 10, 0), 990) for value in box)
    return f"<ref>{words}</ref><box>({x1},{y1}),({x2},{y2})</box>"
