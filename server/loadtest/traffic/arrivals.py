"""When requests leave in an open loop: a constant, Poisson or gamma process at a rate that may rise, or a trace."""

import csv
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path

from server.loadtest.options import Options


def time_of(expected: float, rate: float, ramp: float) -> float:
    """The second at which `expected` arrivals are expected where the rate rises from 0 within `ramp` seconds.

    The expected number of arrivals up to a second t is the area below the line of the rate. Turned round, it gives
    the time at which so many are expected: so every process of rate 1 becomes one of this rate, its burstiness kept.
    """
    during = rate / 2 * ramp
    if expected >= during:
        return ramp + (expected - during) / rate
    return math.sqrt(2 * expected * ramp / rate)


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


def arrivals(options: Options, rate: float, rng: random.Random) -> list[float]:
    """Seconds at which to send, in order: as many as the options count, and none when their seconds are over."""
    unit = unit_arrivals(options.arrivals, options.burstiness, rng)
    times = (time_of(expected, rate, options.ramp) for expected in islice(unit, options.requests))
    return list(takewhile(lambda at: options.seconds is None or at < options.seconds, times))


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One request of a trace; lengths where the trace has them."""

    at: float  # seconds
    prompt_words: int | None = None
    max_tokens: int | None = None


def read_trace(path: Path, speed: float = 1.0) -> list[TraceLine]:
    """The requests of a trace, the first at 0, replayed `speed` times as fast. Raises OSError, and ValueError, which
    names the file.

    A line is JSON with `timestamp` in milliseconds (Mooncake's form, with `input_length` and `output_length`) or `at`
    in seconds, or it is CSV: a number of seconds alone, or with the header `at,input_length,output_length`.
    """
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    found: list[TraceLine] = []
    try:
        rows = [json.loads(line) for line in lines] if lines and lines[0].lstrip()[0] == "{" else _csv_rows(lines)
        for row in rows:
            at = float(row["at"]) if "at" in row else float(row["timestamp"]) / 1000
            words, tokens = row.get("input_length"), row.get("output_length")
            found.append(TraceLine(at / speed, int(words) if words else None, int(tokens) if tokens else None))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: request {len(found) + 1}: no usable `at` or `timestamp` ({error!r})") from None
    if not found:
        raise ValueError(f"{path}: holds no request")
    found.sort(key=lambda line: line.at)
    return [replace(line, at=line.at - found[0].at) for line in found]


def _csv_rows(lines: list[str]) -> list[dict[str, str]]:
    header = lines and any(letter.isalpha() for letter in lines[0].replace("e", ""))
    names = None if header else ["at", "input_length", "output_length"]
    return list(csv.DictReader(lines, fieldnames=names))


def until(lines: list[TraceLine], *, count: int | None, seconds: float | None) -> list[TraceLine]:
    """The beginning of a trace: so many requests, and none at `seconds` or later."""
    return list(takewhile(lambda line: seconds is None or line.at < seconds, lines[:count]))
