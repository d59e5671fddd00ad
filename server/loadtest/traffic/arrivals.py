"""When requests leave in an open loop: a constant, Poisson or gamma process at a rate that may rise, or a trace."""

import csv
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

PROCESSES = ("constant", "poisson", "gamma")


class TraceError(ValueError):
    """A trace file that cannot be used; the message names file and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """A rate that grows in a straight line from `start` to `end` requests a second, and then stays.

    The expected number of arrivals up to a second t is the area below that line. Turned round, it gives the time at
    which so many are expected: so every process of rate 1 becomes one of this rate, its burstiness kept.
    """

    start: float
    end: float
    seconds: float = 0.0

    def time_of(self, expected: float) -> float:
        """The second at which `expected` arrivals are expected."""
        during = (self.start + self.end) / 2 * self.seconds
        if expected >= during:
            return self.seconds + (expected - during) / self.end
        slope = (self.end - self.start) / self.seconds
        if abs(slope) < 1e-12:
            return expected / self.start
        return (math.sqrt(self.start**2 + 2 * slope * expected) - self.start) / slope


def unit_arrivals(process: str, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Times of a process with one arrival a second, for ever.

    burstiness: of `gamma`, the square of the intervals' coefficient of variation (vLLM's is its inverse, the shape);
    1 is Poisson, more comes in clumps.
    """
    shape = 1 / burstiness
    now = 0.0
    while True:
        if process == "constant":
            yield now
            now += 1.0
        else:
            now += rng.expovariate(1.0) if process == "poisson" else rng.gammavariate(shape, burstiness)
            yield now


def arrivals(
    process: str, rise: Rise, rng: random.Random, *, burstiness: float = 1.0, count: int | None, seconds: float | None
) -> list[float]:
    """Seconds at which to send, in order: the first `count` of them, and none at `seconds` or later."""
    if count is None and seconds is None:
        raise ValueError("without a count or an end there are infinitely many")
    found: list[float] = []
    for expected in unit_arrivals(process, burstiness, rng):
        at = rise.time_of(expected)
        if (count is not None and len(found) >= count) or (seconds is not None and at >= seconds):
            return found
        found.append(at)
    raise AssertionError("the process never ends")


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One request of a trace; lengths where the trace has them."""

    at: float  # seconds
    prompt_words: int | None = None
    max_tokens: int | None = None


def read_trace(path: Path, speed: float = 1.0) -> list[TraceLine]:
    """The requests of a trace, the first at 0, replayed `speed` times as fast. Raises TraceError, OSError.

    A line is JSON with `timestamp` in milliseconds (Mooncake's form, with `input_length` and `output_length`) or `at`
    in seconds, or it is CSV: a number of seconds alone, or with the header `at,input_length,output_length`.
    """
    text = path.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    rows = _json_rows(path, lines) if lines and lines[0].lstrip().startswith("{") else _csv_rows(lines)
    found: list[TraceLine] = []
    for number, row in enumerate(rows, 1):
        try:
            at = float(row["at"]) if "at" in row else float(row["timestamp"]) / 1000
            words, tokens = row.get("input_length"), row.get("output_length")
            found.append(TraceLine(at, int(words) if words else None, int(tokens) if tokens else None))
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}: request {number}: no usable `at` or `timestamp` ({error!r})") from None
    if not found:
        raise TraceError(f"{path}: holds no request")
    found.sort(key=lambda line: line.at)
    first = found[0].at
    return [TraceLine((line.at - first) / speed, line.prompt_words, line.max_tokens) for line in found]


def _json_rows(path: Path, lines: list[str]) -> list[dict[str, str]]:
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None


def _csv_rows(lines: list[str]) -> list[dict[str, str]]:
    header = lines and any(letter.isalpha() for letter in lines[0].replace("e", ""))
    names = None if header else ["at", "input_length", "output_length"]
    return [{name: value for name, value in row.items() if name} for row in csv.DictReader(lines, fieldnames=names)]


def until(lines: list[TraceLine], *, count: int | None, seconds: float | None) -> list[TraceLine]:
    """The beginning of a trace: so many requests, and none at `seconds` or later."""
    cut = lines[:count]
    return list(takewhile(lambda line: seconds is None or line.at < seconds, cut))
