"""The flags of the load test: each is declared once, with its type, its default and its help."""

import argparse
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from configs.nearest import FlagParser
from server.loadtest.results.measures import LATENCIES, Requirement, read_objective, read_requirement

DESCRIPTION = """Send requests to a server and measure its answers.

An open loop (--rate, --trace) sends whatever became of earlier requests, as users do. In a closed loop
(--concurrency) each of so many streams waits for its answer. Several rates or streams (--rate 1,2,4,8) are a
sweep. Exit code: 0 good; 1 a requirement missed, a leak or a wrong answer; 2 wrong usage, or too few requests to tell;
3 more than --most-errors failed; 4 no server, or it vanished; 130 interrupted."""
GROUPS = {
    "target": None, "load": None, "requests": "Lists are values and weights: text:60,image:30,image+audio:10",
    "judgement": None, "output": None,
}  # fmt: skip
APIS = {"openai": "/v1/chat/completions", "native": "/chat"}
PROCESSES = ("constant", "poisson", "gamma")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
EXCLUSIVE = (  # flags of which one may be given
    ("rate", "concurrency", "trace"), ("api_key", "api_key_file"), ("unique_media", "shared_media", "repeat"),
    ("unique_media", "shared_media", "requests_file"),
)  # fmt: skip
PILOT = 16  # requests of a search before it, one after the other
NOT_FOUND = (  # flags that --find has no use for
    "rate", "concurrency", "trace", "requests", "seconds", "ramp", "max_in_flight", "slo", "require",
    "dry_run",
)  # fmt: skip
KINDS = ("text", "image", "video", "audio", "demo")  # `demo`: a drawing whose answer the demo model was taught
IMAGE_FORMATS = ("jpeg", "png", "webp")

T = TypeVar("T")


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


def _flag(group: str, text: str, read: Callable[[str], Any] | None = None, default: Any = None, **more: Any) -> Any:
    """A field that is a flag of its name. read: how its value is read; None: it is a switch and takes no value."""
    kind = read if isinstance(read, type) or read is None else _told(read)
    way = {"action": "store_true"} if kind is None else {"type": kind, "default": default}
    return field(metadata={"group": group, "help": text, **way, **more})


def _told(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """For argparse, which shows the message of this error alone."""

    def value(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return value


_target, _load, _content, _judgement, _output = (partial(_flag, group) for group in GROUPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for. Times are seconds, shares from 0 to 1."""

    url: str = _target("the server (default: %(default)s)", str, "http://127.0.0.1:8000")
    api: str = _target("openai: /v1/chat/completions of any server; native: /chat of Pixelferry", str, "openai",
                       choices=list(APIS))  # fmt: skip
    model: str | None = _target("its name (default: the first that /v1/models lists)", str)
    api_key: str | None = _target("sent as a bearer token; it shows in the list of processes", str)
    api_key_file: Path | None = _target("a file that holds the key", Path)
    insecure: bool = _target("take any certificate of https")
    timeout: float = _target("of one request (600s)", duration, 600.0)

    rate: tuple[float, ...] | None = _load("open loop: requests a second", listed(positive))
    arrivals: str = _load("of --rate (%(default)s)", str, "poisson", choices=PROCESSES)
    burstiness: float = _load(
        "of gamma: squared coefficient of variation of the intervals; 1 is Poisson, more comes in clumps",
        positive, 1.0,
    )  # fmt: skip
    trace: Path | None = _load("open loop: send at the times of a file", Path)
    trace_speed: float = _load("times as fast (1)", positive, 1.0)
    max_in_flight: int | None = _load("open loop: hold back what is more", count)
    concurrency: tuple[int, ...] | None = _load("closed loop: streams (4)", listed(count))
    find: Requirement | None = _load(
        "search the highest rate that keeps it: ttft.p99<=1s; a percentile of ttft, tpot, e2el or queue", read_objective
    )
    find_within: float = _load("time of that search (30m)", duration, 1800.0)
    requests: int | None = _load("of each step (100, unless --seconds)", count)
    seconds: float | None = _load("of each step: 30s, 5m, 1h", duration)
    warmup: int = _load("requests before the clock starts (%(default)s)", int, 4)
    ramp: float = _load("the load rises from 0 for so long; its requests are not measured", duration, 0.0)
    grace: float = _load("after --seconds, for answers under way (60s); then they are cut off", duration, 60.0)

    mix: Shares[str] = _content(
        "text, image, video, audio, demo (drawings whose answer the demo model knows: checked)",
        shares(kind), "text",
    )  # fmt: skip
    prompt_words: Shares[int] = _content("(%(default)s)", shares(count), "32")
    max_tokens: Shares[int] = _content("of answers (%(default)s)", shares(count), "32")
    items: Shares[int] = _content("media of each kind in a request (1)", shares(count), "1")
    image_sizes: Shares[tuple[int, int]] = _content("(%(default)s)", shares(size), "1280x720")
    image_format: Shares[str] = _content("jpeg, png, webp (jpeg)", shares(image_format), "jpeg")
    video_seconds: Shares[float] = _content("(%(default)s)", shares(positive), "2")
    video_size: Shares[tuple[int, int]] = _content("(%(default)s)", shares(size), "320x240")
    audio_seconds: Shares[float] = _content("(%(default)s)", shares(positive), "2")
    requests_file: Path | None = _content("JSON lines with prompt, max_tokens, expect, media, instead of a mix", Path)
    media_dir: Path | None = _content("real pictures, videos and sounds instead of generated ones", Path)
    repeat: float = _content("share of media that were sent before (0)", share, 0.0)
    distinct: int = _content(
        "generated media of each kind and size; what needs more sends them again (%(default)s)", count, 64
    )
    unique_media: bool = _content("no medium is sent twice, whatever --distinct says")
    shared_media: int | None = _content("requests choose among so many media of each kind", count)
    cancel: float = _content("share of requests that are left (0)", share, 0.0)
    cancel_within: float = _content("when they are left, drawn evenly (1s)", duration, 1.0)
    ignore_eos: bool = _content("answers of exactly --max-tokens (ignore_eos, min_tokens)")
    temperature: float = _content("(0); below 0: the server's own", float, 0.0)
    extra: dict[str, Any] | None = _content("a JSON object of further fields of the body", json_object)
    no_stream: bool = _content("answers in one piece: no ttft, tpot, itl")
    no_usage: bool = _content("do not ask for token counts; events are counted instead")
    seed: int = _content("the same seed sends the same requests (0)", int, 0)

    slo: dict[str, float] | None = _judgement("for goodput: ttft=500ms,tpot=50ms,e2el=5s", objectives)
    require: list[Requirement] | None = _judgement(
        "for the exit code, as often as wanted: ttft.p99<=500ms, errors<=1%%, goodput>=5", read_requirement,
        action="append",
    )  # fmt: skip
    most_errors: float = _judgement("share of requests that may fail; more is exit code 3 (1%%)", share, 0.01)
    metrics: str = _judgement("path of the server's metrics; none: do not ask (%(default)s)", str, "/metrics")
    sample: float = _judgement("how often they are asked for (1s)", duration, 1.0)
    shm_root: Path | None = _judgement("the server's --shm-root, to look at its files, too", Path)
    settle: float = _judgement("for the server to become idle afterwards (10s)", duration, 10.0)

    json: Path | None = _output("everything, each request included", Path)
    csv: Path | None = _output("a line for each request", Path)
    html: Path | None = _output("the report, one file", Path)
    formulas: bool = _output("print how each figure is computed; --json and --html have it anyway")
    quiet: bool = _output("no progress")
    dry_run: bool = _output("show what would be sent, and send nothing")

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def written(self) -> dict[str, Any]:
        """All of them for the report, but the key."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "api_key"}
        plain = bool | int | float | str | None
        return {name: value if isinstance(value, plain) else str(value) for name, value in found.items()}


def read_options(argv: list[str]) -> Options:
    """Ends the process with 2 and a message on stderr where they cannot be read, as argparse does. Raises OSError."""
    parser = FlagParser(
        prog="pixelferry loadtest", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False, epilog="Compare two runs: pixelferry loadtest compare A.json B.json",
    )  # fmt: skip
    groups = {name: parser.add_argument_group(name, text) for name, text in GROUPS.items()}
    for one in fields(Options):
        way = dict(one.metadata)
        groups[way.pop("group")].add_argument("--" + one.name.replace("_", "-"), **way)
    found = vars(parser.parse_args(argv))
    for names in EXCLUSIVE:
        if sum(bool(found[name]) for name in names) > 1:
            parser.error(f"{', '.join('--' + name.replace('_', '-') for name in names)}: only one of them")
    if found["find"]:
        given = [name for name in NOT_FOUND if found[name]]
        if given:
            parser.error(f"--find has loads and an objective of its own: not with --{given[0].replace('_', '-')}")
        return Options(**found | {"api_key": key_of(found), "requests": PILOT})
    if not (found["rate"] or found["trace"]):
        found["concurrency"] = found["concurrency"] or (4,)
    if found["requests"] is None and found["seconds"] is None and found["trace"] is None:
        found["requests"] = 100
    if found["unique_media"] and found["concurrency"] and found["requests"] is None:
        parser.error("--unique-media: streams need --requests, since all media are made before the clock starts")
    return Options(**found | {"api_key": key_of(found)})


def key_of(found: dict[str, Any]) -> str | None:
    """The key, also of a file. Raises OSError."""
    path: Path | None = found["api_key_file"]
    key: str | None = found["api_key"]
    return key if path is None else path.read_text(encoding="utf-8").strip()
