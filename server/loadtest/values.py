"""How values are written on the command line: `500ms`, `1280x720`, `text:60,image:40`, and lists."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from server.loadtest.results.measures import LATENCIES

T = TypeVar("T")

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
KINDS = ("text", "image", "video", "audio", "demo")  # `demo`: a drawing whose answer the demo model was taught
IMAGE_FORMATS = ("jpeg", "png", "webp")


@dataclass(frozen=True, slots=True)
class Shares(Generic[T]):
    """Values and their weights."""

    values: tuple[T, ...]
    weights: tuple[float, ...]

    def draw(self, rng: random.Random) -> T:
        """One value, with a chance in proportion to its weight."""
        return rng.choices(self.values, self.weights)[0] if len(self.values) > 1 else self.values[0]


def duration(text: str) -> float:
    """Seconds, of `500ms`, `30`, `30s`, `5m`, `1h`. Raises ValueError."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)(ms|s|m|h|)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no time such as 500ms, 30s or 5m")
    return float(match[1]) * SECONDS[match[2]]


def size(text: str) -> tuple[int, int]:
    """Width and height in pixels, of `1280x720`. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", text.strip())
    if match is None or not all(8 <= int(side) <= 16_384 for side in match.groups()):
        raise ValueError(f"{text!r} is no size such as 1280x720, from 8 to 16384 a side")
    return int(match[1]), int(match[2])


def share(text: str) -> float:
    """From 0 to 1, of `0.3` or `30%`. Raises ValueError."""
    number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= number <= 1:
        raise ValueError(f"{text!r} is not between 0 and 1")
    return number


def positive(text: str) -> float:
    """Raises ValueError."""
    number = float(text)
    if not 0 < number < 1e9:
        raise ValueError(f"{text!r} is no number above 0")
    return number


def count(text: str) -> int:
    """A whole number above 0. Raises ValueError."""
    number = int(text)
    if not 0 < number <= 100_000_000:
        raise ValueError(f"{text!r} is no whole number above 0")
    return number


def kind(text: str) -> str:
    """One of the kinds of media, or several that are joined by `+`. Raises ValueError."""
    names = text.strip().split("+")
    if not set(names) <= set(KINDS) or ("demo" in names and len(names) > 1):
        raise ValueError(f"{text!r} is none of {', '.join(KINDS)}, or some of these joined by +")
    return "+".join(names)


def image_format(text: str) -> str:
    """Raises ValueError."""
    if text not in IMAGE_FORMATS:
        raise ValueError(f"{text!r} is none of {', '.join(IMAGE_FORMATS)}")
    return text


def shares(read: Callable[[str], T]) -> Callable[[str], Shares[T]]:
    """Reads `value:weight,value:weight`; a weight that is left out is 1."""

    def shares_of(text: str) -> Shares[T]:
        pairs = [item.strip().rpartition(":") if ":" in item else (item, ":", "1") for item in text.split(",")]
        values, weights = tuple(read(value) for value, _, _ in pairs), tuple(float(weight) for _, _, weight in pairs)
        if min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(f"{text!r}: weights are 0 or more, and not all of them 0")
        return Shares(values, weights)

    return shares_of


def listed(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Reads `1,2,4`."""
    return lambda text: tuple(read(item) for item in text.split(","))


def objectives(text: str) -> dict[str, float]:
    """Seconds by measure, of `ttft=500ms,tpot=50ms`. Raises ValueError."""
    found = {}
    for item in text.split(","):
        name, sign, bound = item.partition("=")
        if name.strip() not in LATENCIES or not sign:
            raise ValueError(f"{item!r} is no objective such as ttft=500ms; there are {', '.join(LATENCIES)}")
        found[name.strip()] = duration(bound)
    return found


def json_object(text: str) -> dict[str, Any]:
    """Raises ValueError."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"{text!r} is no JSON object")
    return found
