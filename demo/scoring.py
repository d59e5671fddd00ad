"""When an answer is right, and how sure a share of right ones is."""

import json
import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

_NUMBERS = MappingProxyType(
    {
        word: str(number)
        for words in (
            ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
            ("零", "一", "二", "三", "四", "五", "六", "七", "八", "九", "十"),
        )
        for number, word in enumerate(words)
    }
    | {"两": "2", "none": "0"}
)


def plain(text: str) -> str:
    """Trimmed, in lower case, without a final full stop; a number written as one word becomes its digits."""
    text = text.strip().lower()
    if text.endswith((".", "。")):
        text = text[:-1].rstrip()
    return _NUMBERS.get(text, text)


def same(said: str, right: str) -> bool:
    """Whether an answer is the right one: a JSON object by its value, other text as `plain` has it."""
    wanted = _object(right)
    return plain(said) == plain(right) if wanted is None else _object(said) == wanted


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def overlap(first: Sequence[float], second: Sequence[float]) -> float:
    """Intersection over union of two boxes (x1, y1, x2, y2), 0 to 1; 0 where one of them is empty."""
    wide = min(first[2], second[2]) - max(first[0], second[0])
    high = min(first[3], second[3]) - max(first[1], second[1])
    if wide <= 0 or high <= 0:
        return 0.0
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (first, second)]
    return wide * high / (sum(areas) - wide * high)


def wilson(right: int, asked: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's interval (low, high) for a share, of 95 % by default. Raises ValueError if nothing was asked."""
    if asked < 1:
        raise ValueError("no interval without a question")
    share, square = right / asked, z * z
    middle = share + square / (2 * asked)
    reach = z * math.sqrt(share * (1 - share) / asked + square / (4 * asked * asked))
    whole = 1 + square / asked
    return max(0.0, (middle - reach) / whole), min(1.0, (middle + reach) / whole)
