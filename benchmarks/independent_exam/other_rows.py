"""Rows about clips, sounds, conversations, JSON and tools."""

from typing import Any

import numpy as np

from benchmarks.independent_exam import sounds
from benchmarks.independent_exam.clips import clip
from benchmarks.independent_exam.picture_rows import WHAT, apart, crowd, single
from benchmarks.independent_exam.question import Question, one_of
from benchmarks.independent_exam.scenes import LOOKS, Scene, any_colour, any_shape
from benchmarks.independent_exam.scoring import Called, Names, Number, Object, Rule, Says
from benchmarks.independent_exam.words import PLURALS, SHAPES, WAYS, with_article

_TIMBRE = dict(zip(LOOKS, sounds.TIMBRES, strict=True))  # rows have five kinds of media, one after another


def motion(look: str, rng: np.random.Generator) -> Question:
    """Which way one thing moves."""
    way = one_of(WAYS, rng)
    asked = (
        "Which way does it move?",
        "Which way does it move?",
        "In which direction does it move?",
        "Where does it move?",
    )
    media = (clip(way, any_shape(rng), look, rng),)
    return Question(part=look, turns=(one_of(asked, rng),), media=media, rule=Names(must={"way": way}))


def beeps(look: str, rng: np.random.Generator) -> Question:
    """How many beeps, 1 to 5."""
    n, timbre = int(rng.integers(1, 6)), _TIMBRE[look]
    asked = ("How many beeps do you hear?", "How many beeps are there?", "Count the beeps.")
    media = (sounds.beeps(n, timbre, rng),)
    return Question(part=timbre, turns=(one_of(asked, rng),), media=media, rule=Number(n=n))


def pitch(look: str, rng: np.random.Generator) -> Question:
    """Whether a tone is high or low."""
    wanted, timbre = one_of(("high", "low"), rng), _TIMBRE[look]
    asked = ("Is the tone high or low?", "Is this sound high or low?", "Is the pitch high or low?")
    media = (sounds.steady(wanted, timbre, rng),)
    return Question(part=timbre, turns=(one_of(asked, rng),), media=media, rule=Names(must={"pitch": wanted}))


def glide(look: str, rng: np.random.Generator) -> Question:
    """Whether a tone rises or falls."""
    wanted, timbre = one_of(("rise", "fall"), rng), _TIMBRE[look]
    asked = ("Does the tone rise or fall?", "Does the pitch rise or fall?", "Is the tone rising or falling?")
    media = (sounds.glide(wanted, timbre, rng),)
    return Question(part=timbre, turns=(one_of(asked, rng),), media=media, rule=Names(must={"glide": wanted}))


# What is said, by what it is; and what an answer must hold.
_TALK: dict[str, tuple[tuple[str, ...], str]] = {
    "greeting": (
        ("Hello", "Hi", "Hi there", "Hello there", "Hey", "Good morning", "Good evening", "Good day", "你好", "您好"),
        r"\bhello\b|\bhi\b|\bhey\b|welcome|\bgood (?:morning|evening|day)\b|你好|您好|欢迎",
    ),
    "who": (
        ("Who are you", "What are you", "What is your name", "What are you called", "Which model are you",
         "Are you a person", "Who am I talking to", "Tell me about yourself", "你是谁", "你叫什么名字"),
        r"pixelferry|\bdemo\b|\bmodel\b|模型",
    ),
    "what for": (
        ("What can you do", "What can I ask you", "How can you help me", "What do you know", "What should I send you",
         "What can you see", "Can you help me", "What are you good at", "你能做什么", "我可以问你什么"),
        r"pictures?|images?|shapes?|videos?|clips?|sounds?|audio|图|视频|声音",
    ),
    "thanks": (
        ("Thank you", "Thanks", "Thanks a lot", "Thank you very much", "Many thanks", "Great, thanks", "Cheers",
         "That was helpful", "谢谢", "谢谢你"),
        r"welcome|pleasure|glad|happy to|any ?time|no problem|不客气|不用谢|不谢",
    ),
    "goodbye": (
        ("Goodbye", "Bye", "Bye bye", "See you", "See you later", "Good night", "I have to go", "再见", "拜拜"),
        r"\bbye\b|goodbye|see you|good night|farewell|take care|再见|拜拜",
    ),
    "how are you": (
        ("How are you", "How are you today", "How do you do", "How is it going", "Are you well", "你好吗", "你怎么样"),
        r"\bfine\b|\bwell\b|\bgood\b|\bgreat\b|\bok(?:ay)?\b|thank|很好|还好|不错",
    ),
}  # fmt: skip
_ASKS = ("who", "what for", "how are you")
_BEFORE = ("", "", "", "Hello! ", "Hi, ", "Excuse me, ", "Hey! ", "So, ", "Well, ")


def small_talk(look: str, rng: np.random.Generator) -> Question:
    """What a stranger says first or last, without a medium; the look has no part in it."""
    kind = one_of(tuple(_TALK), rng)
    cores, pattern = _TALK[kind]
    core = one_of(cores, rng)
    if core.isascii():
        before = one_of(_BEFORE, rng) if kind in _ASKS else ""
        words = before + (core[0].lower() + core[1:] if before.endswith(", ") and not core.startswith("I ") else core)
        words = one_of((words, words, words.lower()), rng)
        end = one_of(("?", "?", "", "??", " please?") if kind in _ASKS else ("", ".", "!", "!!", " :)"), rng)
    else:
        words, end = core, one_of(("？", "", "?") if kind in _ASKS else ("", "。", "！"), rng)
    return Question(part=kind, turns=(words + end,), rule=Says(pattern=pattern))


def follow_up(look: str, rng: np.random.Generator) -> Question:
    """A second question about the picture of the first, which the model has answered by itself."""
    kind = one_of(("colour", "shape", "is it", "is there", "how many", "colour of one"), rng)
    if kind in ("colour", "shape", "is it"):
        shown = single(look, rng)
        first = one_of(WHAT, rng)
    else:
        shown = apart(int(rng.integers(2, 5)), look, rng)
        first = "How many shapes are there?"
    text, rule = _second(kind, shown, rng)
    return Question(part=kind, turns=(first, text), media=(shown,), rule=rule)


def _second(kind: str, shown: Scene, rng: np.random.Generator) -> tuple[str, Rule]:
    thing = one_of(shown.things, rng)
    there = sorted({found.shape for found in shown.things})
    once = [found for found in shown.things if sum(other.shape == found.shape for other in shown.things) == 1]
    if kind == "colour":
        text = one_of(("What colour is it?", "And what colour is it?", "Which colour does it have?"), rng)
        return text, Names(must={"colour": thing.colour}, may={"shape": thing.shape})
    if kind == "shape":
        text = one_of(("What shape is it?", "And what shape is it?", "Which shape does it have?"), rng)
        return text, Names(must={"shape": thing.shape}, may={"colour": thing.colour})
    if kind == "is it":
        truly = bool(rng.integers(2))
        name = thing.shape if truly else one_of([other for other in SHAPES if other != thing.shape], rng)
        return f"Is it {with_article(name)}?", Names(must={"yes or no": "yes" if truly else "no"})
    if kind == "is there":
        truly = bool(rng.integers(2))
        name = one_of(there if truly else [other for other in SHAPES if other not in there], rng)
        return f"Is there {with_article(name)}?", Names(must={"yes or no": "yes" if truly else "no"})
    if kind == "colour of one" and once:
        thing = one_of(once, rng)
        text = f"What colour is the {thing.shape}?"
        return text, Names(must={"colour": thing.colour}, may={"shape": thing.shape})
    n = sum(found.shape == thing.shape for found in shown.things)
    return one_of(("And how many {0}?", "How many {0} are there?"), rng).format(PLURALS[thing.shape]), Number(n=n)


def as_json(look: str, rng: np.random.Generator) -> Question:
    """One thing, told as a JSON object."""
    shown = single(look, rng)
    asked = (
        "What is in this picture? Answer in JSON with shape and colour.",
        "Answer in JSON with shape and colour.",
        "What is this? Answer in JSON with shape and colour.",
        "Describe the picture in JSON with shape and colour.",
        "Answer in JSON with the keys shape and colour.",
    )
    thing = shown.things[0]
    rule = Object(shape=thing.shape, colour=thing.colour)
    return Question(part=look, turns=(one_of(asked, rng),), media=(shown,), rule=rule)


COUNT: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "count_shapes",
        "description": "Counts how many shapes of one kind are in the picture.",
        "parameters": {
            "type": "object",
            "properties": {"shape": {"type": "string", "enum": list(SHAPES)}},
            "required": ["shape"],
        },
    },
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def tool(look: str, rng: np.random.Generator) -> Question:
    """Half ask for a count with `count_shapes` offered, which is to be called; the others call nothing.

    Those ask something else, or ask for a count where another tool is offered alone.
    """
    wanted = any_shape(rng)
    text = one_of(("How many {0} are there?", "How many {0} do you see?", "Count the {0}."), rng).format(
        PLURALS[wanted]
    )
    if rng.random() < 0.5:
        shown, _ = crowd(wanted, look, rng)
        rule = Called(name="count_shapes", arguments={"shape": wanted})
        tools = one_of(((COUNT,), (COUNT,), (COUNT, WEATHER), (WEATHER, COUNT)), rng)
        return Question(part="fits", turns=(text,), media=(shown,), rule=rule, tools=tools)
    if rng.random() < 0.2:
        shown, _ = crowd(wanted, look, rng)
        return Question(part="another tool", turns=(text,), media=(shown,), rule=Called(), tools=(WEATHER,))
    shown = single(look, rng)
    thing = shown.things[0]
    other = (
        *WHAT,
        "What colour is it?",
        f"Where is the {thing.words}?",
        f"Is there {with_article(any_colour(rng))} thing?",
    )
    talk = ("Hello!", "Who are you?", "What can you do?")
    if rng.random() < 0.25:
        return Question(part="does not fit", turns=(one_of(talk, rng),), rule=Called(), tools=(COUNT,))
    return Question(part="does not fit", turns=(one_of(other, rng),), media=(shown,), rule=Called(), tools=(COUNT,))
