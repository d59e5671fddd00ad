"""The rules by which an answer is right or wrong, and the interval that a share of right ones lies in.

An answer is the JSON of `POST /chat`: `text`, `boxes` and `tool_calls`. What a rule does not speak of is
free: a sentence is as right as a word. Capitals do not count, and English or Chinese are both taken.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.independent_exam.words import named, numbers

Answer = Mapping[str, Any]
Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels
LEAST_OVERLAP = 0.5  # intersection over union


class Rule(Protocol):
    """What decides about one answer."""

    def right(self, answer: Answer) -> bool:
        """Whether it is right."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The text names exactly `must`, by kind of names (words.KINDS); of a kind it may also name what `may` has."""

    must: Mapping[str, str]
    may: Mapping[str, str] = field(default_factory=dict)

    def right(self, answer: Answer) -> bool:
        """Whether each kind has its one name, and no other."""
        said = {kind: named(kind, answer["text"]) for kind in {*self.must, *self.may}}
        wanted = all(said[kind] == {name} for kind, name in self.must.items())
        return wanted and all(said[kind] <= {name} for kind, name in self.may.items() if kind not in self.must)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """The text says this number, in digits or as a word, and no other; "no" and "none" are 0."""

    n: int

    def right(self, answer: Answer) -> bool:
        """Whether it does."""
        return numbers(answer["text"]) == {self.n}


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """The text holds these digits, in one piece, and no others: a number that was read."""

    digits: str

    def right(self, answer: Answer) -> bool:
        """Whether it does."""
        return re.findall(r"\d+", answer["text"]) == [self.digits]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointed:
    """The answer has one box in `boxes`, and its intersection over union with the thing's is at least a half."""

    box: Box

    def right(self, answer: Answer) -> bool:
        """Whether it has."""
        boxes = answer.get("boxes") or []
        if len(boxes) != 1 or boxes[0]["kind"] != "box":
            return False
        (left, top), (right, bottom) = boxes[0]["points"]
        return overlap((left, top, right, bottom), self.box) >= LEAST_OVERLAP


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """The whole text is a JSON object whose `shape` and `colour` (or `color`) are these two; more keys are free."""

    shape: str
    colour: str

    def right(self, answer: Answer) -> bool:
        """Whether it is."""
        try:
            found = json.loads(answer["text"])
        except ValueError:
            return False
        if not isinstance(found, dict):
            return False
        said = (found.get("shape"), found.get("colour", found.get("color")))
        return tuple(str(word).strip().lower() for word in said) == (self.shape, self.colour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The answer is one call of this tool with these arguments; without a name it calls nothing and says something."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def right(self, answer: Answer) -> bool:
        """Whether it calls when it should."""
        calls = [call["function"] for call in answer.get("tool_calls") or []]
        if not self.name:
            return not calls and bool(answer["text"].strip())
        if len(calls) != 1 or calls[0]["name"] != self.name:
            return False
        try:
            return bool(json.loads(calls[0]["arguments"]) == dict(self.arguments))
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Says:
    """The text holds something that this pattern finds."""

    pattern: str

    def right(self, answer: Answer) -> bool:
        """Whether it does."""
        return re.search(self.pattern, answer["text"], re.IGNORECASE) is not None


def overlap(one: Box, other: Box) -> float:
    """Intersection over union of two boxes, 0 to 1."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(0.0, wide) * max(0.0, high)
    areas = [max(0.0, right - left) * max(0.0, bottom - top) for left, top, right, bottom in (one, other)]
    return shared / (sum(areas) - shared) if sum(areas) > shared else 0.0


def wilson(right: int, asked: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % score interval of a share, 0 to 1 (E. B. Wilson, JASA 22, 1927)."""
    share = right / asked
    middle = share + z * z / (2 * asked)
    reach = z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked))
    whole = 1 + z * z / asked
    return max(0.0, (middle - reach) / whole), min(1.0, (middle + reach) / whole)
