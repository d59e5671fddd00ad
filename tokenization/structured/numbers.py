"""Bounds and values of a schema's numbers, as the compiler takes them: it reads each number as a double.

A bound that the compiler would hold otherwise than JSON schema does is written as one that it holds rightly. Whole
numbers beyond 2^53 are left as they are: `exact_grammar.py` writes the schemas that have them, and `narrow` what that
cannot write.
"""

import math
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

from tokenization.structured.schema import BOUNDS, HELD, Path, Unsupported, pointer

EXACT = 1 << 53  # up to it each whole number is a double
MOST = 10**40  # of whole numbers that a bound is right for
SIGNED = (1 << 63) - 1  # as far as the compiler's own whole numbers go
WIDE = 1 << 60  # whole numbers of a range that may lose the last thousand or two at its ends
# Of decimals: the compiler reads one of more digits, or nearer to zero, as a double beside it, and nests its patterns
# by the digits of a bound.
DIGITS, SMALLEST = 15, 1e-20
MOST_LISTED = 4096  # multiples that are written one by one
MAX_MULTIPLE = (1 << 32) - 1  # the compiler multiplies what a value is to be a multiple of in 32 bits
OTHER_TYPES = ("null", "boolean", "object", "array", "string")


def hold_bounds(schema: dict[str, Any]) -> None:
    """Write a schema's own bounds so that the compiler holds them, in place."""
    if not schema.keys() & BOUNDS:
        return
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set(named or ())
    low, high = _tightest(schema)
    for keyword in BOUNDS:
        schema.pop(keyword, None)
    if types and not types & {"integer", "number"}:
        return
    if "integer" in types and "number" not in types:
        schema.update(_bounds(_up(low), _down(high)))
        return
    # Of any number: beyond 2^53 the whole ones, which are right to the digit; below it as doubles.
    whole_low, whole_high = _up(low), _down(high)
    if any(abs(bound[0]) >= EXACT for bound in (low, high) if bound is not None):
        parts = [{"type": "integer", **_bounds(whole_low, whole_high)}]
        if (whole_low is None or whole_low < EXACT) and (whole_high is None or whole_high > -EXACT):
            parts += _decimal("number", _within(low, -EXACT), _within(high, EXACT))
        if others := [name for name in OTHER_TYPES if not types or name in types]:
            parts.append({"type": others})
    else:
        parts = _decimal(named, low, high)
    _replace(schema, parts)


Bound = tuple[int | float, bool]  # and whether the bound itself is none of the values


def _tightest(schema: Mapping[str, Any]) -> tuple[Bound | None, Bound | None]:
    """The lower and the upper bound that a schema's keywords come to; draft 4's flags among them."""
    ends: list[Bound | None] = []
    for keyword, exclusive, sign in (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1)):
        flag = schema.get(exclusive)
        is_flag = isinstance(flag, bool)
        found: list[Bound] = [(as_written(schema[keyword]), is_flag and bool(flag))] if keyword in schema else []
        found += [(as_written(flag), True)] if flag is not None and not is_flag else []
        ends.append(max(found, key=lambda bound: (sign * Decimal(bound[0]), bound[1]), default=None))
    return ends[0], ends[1]


def _up(low: Bound | None) -> int | None:
    """The least whole number that a lower bound lets be."""
    return None if low is None else max(-MOST, math.floor(low[0]) + 1 if low[1] else math.ceil(low[0]))


def _down(high: Bound | None) -> int | None:
    return None if high is None else min(MOST, math.ceil(high[0]) - 1 if high[1] else math.floor(high[0]))


def _within(bound: Bound | None, most: int) -> Bound:
    """The bound, or the nearest to zero of it and `most`."""
    return bound if bound is not None and abs(bound[0]) < abs(most) else (most, False)


def _bounds(low: float | None, high: float | None) -> dict[str, Any]:
    return {**({} if low is None else {"minimum": low}), **({} if high is None else {"maximum": high})}


def _decimal(named: Any, low: Bound | None, high: Bound | None, *, rounded: bool = False) -> list[dict[str, Any]]:
    """Alternatives that are a range of doubles together, each bound in it among its values.

    The compiler takes the whole number that an open range begins with, and does not take a value whose digits are the
    first ones of the bound that is further from zero: 3.65 and 3.6 of at most 3.651. These are listed.
    A range with a bound of more digits is left to `exact_grammar.py`, unless it is to be rounded.
    """
    least, most = _closed(low, math.inf, rounded=rounded), _closed(high, -math.inf, rounded=rounded)
    types = {} if named is None else {"type": named}
    alternatives = [{**types, **_bounds(least, most)}]
    if _has_large([least, most]):
        return alternatives
    fits = [value for value in (*_shorter(most), *_shorter(least))
            if (least is None or value >= least) and (most is None or value <= most)]  # fmt: skip
    return [*alternatives, {"enum": list(dict.fromkeys(fits))}] if fits else alternatives


def _closed(bound: Bound | None, inwards: float, *, rounded: bool) -> float | None:
    """The bound, or the first value inwards of it that the compiler reads as it stands.

    One that is given with more digits than it reads stays as it is, unless it is to be rounded.
    """
    if bound is None:
        return None
    value = float(bound[0])
    is_long = _has_large(value) and SMALLEST <= abs(value) < EXACT
    value = math.nextafter(value, inwards) if bound[1] else value
    if 0 < abs(value) < SMALLEST:
        value = math.copysign(SMALLEST, value) if (value < 0) == (inwards < 0) else 0.0
    if value.is_integer() and abs(value) <= EXACT:
        return int(value)
    if is_long and not rounded:
        return value
    context = Context(prec=DIGITS, rounding=ROUND_CEILING if inwards > 0 else ROUND_FLOOR)
    value = float(context.create_decimal(repr(value)))
    return int(value) if value.is_integer() else value


def _shorter(bound: float | None) -> list[float]:
    """The values that the first digits of a bound behind its point are, where the bound is further from zero."""
    if bound is None:
        return []
    text = format(Decimal(repr(bound)), "f")
    places = len(text.partition(".")[2])
    return [float(text[:-cut]) for cut in range(1, places)]


def _replace(schema: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    """Put alternatives in the place of a schema's bounds."""
    if len(parts) == 1:
        schema.update(parts[0])
        return
    if not schema.keys() & (HELD.keys() - {"type", "$schema"}):
        schema.pop("type", None)
        schema["anyOf"] = parts
    else:
        schema.setdefault("allOf", []).append({"anyOf": parts})


def as_written(value: Any) -> Any:
    """A value whose whole numbers have no point, as the compiler spells them."""
    if isinstance(value, list):
        return [as_written(one) for one in value]
    if isinstance(value, dict):
        return {name: as_written(one) for name, one in value.items()}
    return int(Decimal(repr(value))) if isinstance(value, float) and value.is_integer() else value


def is_large(schema: Mapping[str, Any]) -> bool:
    """Whether a schema's own keywords have a number that the compiler reads as another one."""
    bounds = [schema[keyword] for keyword in BOUNDS if keyword in schema]
    return any(map(_has_large, (*bounds, schema.get("const"), schema.get("enum"))))


def _has_large(value: Any) -> bool:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, int) and not isinstance(one, bool) and abs(one) > EXACT:
            return True
        if (
            isinstance(one, float)
            and one
            and (len(Decimal(repr(one)).normalize().as_tuple().digits) > DIGITS or not SMALLEST <= abs(one) <= EXACT)
        ):
            return True
        left += one if isinstance(one, list) else one.values() if isinstance(one, dict) else ()
    return False


def narrow(schemas: Iterable[tuple[dict[str, Any], Path]]) -> Unsupported | None:
    """Round large bounds inwards, in place, where hardly a value is lost; else say what is not held."""
    for one, path in schemas:
        if not is_large(one):
            continue
        if any(isinstance(one.get(keyword), float) for keyword in ("minimum", "maximum")):
            ends = [(one.pop(keyword), False) if keyword in one else None for keyword in ("minimum", "maximum")]
            _replace(one, _decimal(one.get("type"), *ends, rounded=True))
            if "$ref" in one:
                one["$ref"] = one.pop("$ref")  # last, as `make_compilable` has it
            if not is_large(one):
                continue
        low, high = max(one.get("minimum", -SIGNED), -SIGNED), min(one.get("maximum", SIGNED), SIGNED)
        if _has_large([one.get("const"), one.get("enum")]) or high - low < WIDE:
            keyword = next(name for name in ("const", "enum", *BOUNDS) if _has_large(one.get(name)))
            reason = "a number beyond 2^53 is not held beside all that is said of its value"
            return Unsupported(pointer=pointer((*path, keyword)), keyword=keyword, reason=reason)
        for keyword, inwards in (("minimum", math.inf), ("maximum", -math.inf)):
            if _has_large(one.get(keyword)):
                one[keyword] = _double(min(max(one[keyword], -SIGNED), SIGNED), inwards)
    return None


def _double(value: int, inwards: float) -> int:
    """The nearest double inwards of a whole number of 63 bits."""
    found = float(value)
    if found != value and (found > value) != (inwards > 0):
        found = math.nextafter(found, inwards)
    return int(found)


def multiples(low: int | None, high: int | None, of: float) -> tuple[dict[str, Any] | None, list[int]] | None:
    """Those of a range: a schema of the ones that the compiler takes, and others one by one; None: it takes too few.

    It takes none below 0: where a range has more of them than are written one by one, they are not among its values.
    of: a whole number, or halves of halves.
    """
    step = Fraction(of).numerator  # of 2.5 the whole multiples are those of 5
    if low is not None and high is not None and high // step - (low - 1) // step <= MOST_LISTED:
        return None, [*range(-(-low // step) * step, high + 1, step)]
    low = max(0, low or 0)
    if high is None or not low <= high <= SIGNED:
        return None
    least, most = _double(low, math.inf), _double(high, -math.inf)
    ends = [*range(-(-low // step) * step, least, step), *range((most // step + 1) * step, high + 1, step)]
    return {**_bounds(least, most), "multipleOf": step}, ends


def whole_numbers(low: int | None, high: int | None) -> str | None:
    """A regular expression of the whole numbers of a range, as JSON spells them; None: there are none."""
    if low is not None and high is not None and low > high:
        return None
    parts = []
    if low is None or low < 0:
        most = None if low is None else -low
        parts.append("-" + _naturals(max(1, 1 if high is None else -high), most))
    if high is None or high >= 0:
        parts.append(_naturals(max(0, low or 0), high))
    return f"({'|'.join(parts)})"


def _naturals(low: int, high: int | None) -> str:
    """Those of a range that begins with 0 or more."""
    if high is None:
        longer = f"[1-9][0-9]{{{len(str(low))},}}"
        return f"({_naturals(low, 10 ** len(str(low)) - 1)}|{longer})"
    parts = []
    for n in range(len(str(low)), len(str(high)) + 1):  # those of n digits
        least, most = max(low, 10 ** (n - 1) if n > 1 else 0), min(high, 10**n - 1)
        parts.append(_of_one_length(str(least), str(most)))
    return f"({'|'.join(parts)})"


def _of_one_length(low: str, high: str) -> str:
    """The digits from one number to another that has as many."""
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b), len(low))
    head, low, high = low[:same], low[same:], high[same:]
    if len(low) <= 1:
        return head + (f"[{low}-{high}]" if low else "")
    free = f"[0-9]{{{len(low) - 1}}}"
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:].strip("0"):
        parts.append(low[0] + _of_one_length(low[1:], "9" * (len(low) - 1)))
        first += 1
    if high[1:].strip("9"):
        parts.append(high[0] + _of_one_length("0" * (len(low) - 1), high[1:]))
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}]{free}")
    return f"{head}({'|'.join(parts)})"


def decimals(low: float | None, high: float | None) -> str | None:
    """A regular expression of the decimals of a range, without exponents; None: there are none."""
    if low is not None and high is not None and low > high:
        return None
    parts = []
    if low is None or low < 0:
        parts.append("-" + _magnitudes(0 if high is None or high >= 0 else -high, None if low is None else -low))
    if high is None or high >= 0:
        parts.append(_magnitudes(0 if low is None or low <= 0 else low, high))
    return f"({'|'.join(parts)})"


def _magnitudes(low: float, high: float | None) -> str:
    """Those of a range that begins with 0 or more: by their whole part, then by the digits behind the point."""
    whole, first = _split(low)
    if high is None:
        return f"({whole}{_from(first)}|{_naturals(whole + 1, None)}{_ANY})"
    last_whole, last = _split(high)
    if whole == last_whole:
        return f"{whole}{_between(first, last)}"
    parts = [f"{whole}{_from(first)}", f"{last_whole}{_up_to(last)}"]
    if last_whole - whole > 1:
        parts.append(f"{_naturals(whole + 1, last_whole - 1)}{_ANY}")
    return f"({'|'.join(parts)})"


_ANY, _MORE = r"(\.[0-9]+)?", "[0-9]*"  # a point and digits; more digits


def _split(number: float) -> tuple[int, str]:
    """The whole part, and the digits behind the point up to the last that is not 0."""
    whole, _, digits = format(Decimal(repr(number)), "f").partition(".")
    return int(whole), digits.rstrip("0")


def _from(low: str) -> str:
    """The point and what follows it, of fractions that begin with these digits; without digits, of any."""
    return rf"\.{_digits_from(low)}" if low else _ANY


def _up_to(high: str) -> str:
    return rf"(\.{_digits_up_to(high)})?" if high else r"(\.0+)?"


def _between(low: str, high: str) -> str:
    return rf"\.{_digits_between(low, high)}" if low else _up_to(high)


def _digits_from(low: str) -> str:
    """All digits that follow, of fractions from one on. Each level is one digit of it."""
    if not low:
        return _MORE
    return f"({low[0]}{_digits_from(low[1:])}{_others(int(low[0]) + 1, 9)})"


def _digits_up_to(high: str) -> str:
    if not high:
        return "0*"
    rest = _digits_up_to(high[1:])
    return f"({high[0]}{f'({rest})?' if high[1:] else rest}{_others(0, int(high[0]) - 1)})"


def _digits_between(low: str, high: str) -> str:
    if not low:
        return f"({_digits_up_to(high)})?"
    if low[0] == high[0]:
        return low[0] + _digits_between(low[1:], high[1:])
    below = f"{high[0]}({_digits_up_to(high[1:])})?"
    return f"({low[0]}{_digits_from(low[1:])}|{below}{_others(int(low[0]) + 1, int(high[0]) - 1)})"


def _others(first: int, last: int) -> str:
    """One more alternative: a digit of these, and any that follow."""
    return f"|[{first}-{last}]{_MORE}" if first <= last else ""
