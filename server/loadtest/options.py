"""The flags of the load test, and what they say as one frozen object."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.loadtest import values
from server.loadtest.results.leaks import MIB
from server.loadtest.results.requirements import Requirement, RequirementError, read_requirement
from server.loadtest.traffic.arrivals import PROCESSES
from server.loadtest.traffic.asks import APIS
from server.loadtest.traffic.mixes import Mix

DESCRIPTION = """Send requests to a server and measure its answers.

An open loop (--rate, --trace) sends whatever became of earlier requests, as users do. In a closed loop
(--concurrency) each of so many streams waits for its answer. Several rates or streams (--rate 1,2,4,8) are a
sweep. Exit code: 0 good; 1 a requirement missed, a leak, a wrong answer or none at all; 2 wrong usage; 130
interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for. Times are seconds."""

    url: str
    api: str
    model: str | None
    key: str | None
    insecure: bool
    timeout: float
    rates: tuple[float, ...]  # empty: not an open loop by rate
    arrivals: str
    burstiness: float
    trace: Path | None
    trace_speed: float
    max_in_flight: int | None
    streams: tuple[int, ...]
    count: int | None
    seconds: float | None
    warmup: int
    ramp: float
    grace: float
    mix: Mix
    requests_file: Path | None
    media_dir: Path | None
    distinct: int
    seed: int
    temperature: float | None
    ignore_eos: bool
    stream: bool
    usage: bool
    extra: dict[str, Any]
    objectives: dict[str, float]
    requirements: tuple[Requirement, ...]
    metrics: str | None
    sample: float
    shm_root: Path | None
    settle: float
    memory_slack: float  # bytes
    json: Path | None
    csv: Path | None
    html: Path | None
    quiet: bool
    dry_run: bool
    given: dict[str, Any] = field(default_factory=dict)  # as they were written, for the report


def read_options(argv: list[str]) -> Options:
    """Ends the process with 2 and a message on stderr where they cannot be read, as argparse does."""
    parser = make_parser()
    found = parser.parse_args(argv)
    if sum(bool(way) for way in (found.rate, found.concurrency, found.trace)) > 1:
        parser.error("--rate, --concurrency and --trace: only one of them")
    if not (found.rate or found.concurrency or found.trace):
        found.concurrency = (4,)
    if found.requests is None and found.seconds is None and found.trace is None:
        found.requests = 100
    if found.api_key and found.api_key_file:
        parser.error("--api-key and --api-key-file: only one of them")
    given = {name: _written(value) for name, value in vars(found).items() if name != "api_key"}
    return options_of(found, given)


def options_of(found: argparse.Namespace, given: dict[str, Any]) -> Options:
    key = found.api_key or (found.api_key_file.read_text(encoding="utf-8").strip() if found.api_key_file else None)
    mix = Mix(
        kinds=found.mix, prompt_words=found.prompt_words, max_tokens=found.max_tokens, items=found.items,
        image_sizes=found.image_sizes, image_format=found.image_format, video_seconds=found.video_seconds,
        video_size=found.video_size, audio_seconds=found.audio_seconds, repeated=found.repeat, cancelled=found.cancel,
        cancel_within=found.cancel_within,
    )  # fmt: skip
    return Options(
        url=found.url, api=found.api, model=found.model, key=key, insecure=found.insecure, timeout=found.timeout,
        rates=found.rate or (), arrivals=found.arrivals, burstiness=found.burstiness, trace=found.trace,
        trace_speed=found.trace_speed, max_in_flight=found.max_in_flight, streams=found.concurrency or (),
        count=found.requests, seconds=found.seconds, warmup=found.warmup, ramp=found.ramp, grace=found.grace, mix=mix,
        requests_file=found.requests_file, media_dir=found.media_dir, distinct=found.distinct, seed=found.seed,
        temperature=None if found.temperature < 0 else found.temperature, ignore_eos=found.ignore_eos,
        stream=not found.no_stream, usage=not found.no_usage, extra=found.extra or {}, objectives=found.slo or {},
        requirements=tuple(found.require or ()), metrics=None if found.metrics == "none" else found.metrics,
        sample=found.sample, shm_root=found.shm_root, settle=found.settle, memory_slack=found.memory_slack * MIB,
        json=found.json, csv=found.csv, html=found.html, quiet=found.quiet, dry_run=found.dry_run, given=given,
    )  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pixelferry loadtest", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False, epilog="Compare two runs: pixelferry loadtest compare A.json B.json",
    )  # fmt: skip
    for add in (_add_target, _add_load, _add_content, _add_judgement, _add_output):
        add(parser)
    return parser


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("target")
    group.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    group.add_argument("--api", choices=list(APIS), default="openai",
                       help="openai: /v1/chat/completions of any server; native: /chat of Pixelferry")  # fmt: skip
    group.add_argument("--model", help="its name (default: the first that /v1/models lists)")
    group.add_argument("--api-key", help="sent as a bearer token; it shows in the list of processes")
    group.add_argument("--api-key-file", type=Path, help="a file that holds the key")
    group.add_argument("--insecure", action="store_true", help="take any certificate of https")
    group.add_argument("--timeout", type=_value(values.duration), default=600.0, help="of one request (600s)")


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument("--rate", type=_value(values.listed(values.positive)), help="open loop: requests a second")
    group.add_argument("--arrivals", choices=PROCESSES, default="poisson", help="of --rate (%(default)s)")
    group.add_argument("--burstiness", type=_value(values.positive), default=1.0,
                       help="of gamma: squared coefficient of variation of the intervals; 1 is Poisson, more comes in "
                       "clumps")  # fmt: skip
    group.add_argument("--trace", type=Path, help="open loop: send at the times of a file")
    group.add_argument("--trace-speed", type=_value(values.positive), default=1.0, help="times as fast (1)")
    group.add_argument("--max-in-flight", type=_value(values.count), help="open loop: hold back what is more")
    group.add_argument("--concurrency", type=_value(values.listed(values.count)), help="closed loop: streams (4)")
    group.add_argument("--requests", type=_value(values.count), help="of each step (100, unless --seconds)")
    group.add_argument("--seconds", type=_value(values.duration), help="of each step: 30s, 5m, 1h")
    group.add_argument("--warmup", type=int, default=4, help="requests before the clock starts (%(default)s)")
    group.add_argument("--ramp", type=_value(values.duration), default=0.0,
                       help="the load rises from 0 for so long; its requests are not measured")  # fmt: skip
    group.add_argument("--grace", type=_value(values.duration), default=60.0,
                       help="after --seconds, for answers under way (60s); then they are cut off")  # fmt: skip


def _add_content(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests", "Lists are values and weights: text:60,image:30,image+audio:10")
    add = group.add_argument
    add("--mix", type=_value(values.shares(values.kind)), default="text",
        help="text, image, video, audio, demo (drawings whose answer the demo model knows: checked)")  # fmt: skip
    add("--prompt-words", type=_value(values.shares(values.count)), default="32", help="(%(default)s)")
    add("--max-tokens", type=_value(values.shares(values.count)), default="32", help="of answers (%(default)s)")
    add("--items", type=_value(values.shares(values.count)), default="1", help="media of each kind in a request (1)")
    add("--image-sizes", type=_value(values.shares(values.size)), default="1280x720", help="(%(default)s)")
    add(
        "--image-format", type=_value(values.shares(values.image_format)), default="jpeg", help="jpeg, png, webp (jpeg)"
    )
    add("--video-seconds", type=_value(values.shares(values.positive)), default="2", help="(%(default)s)")
    add("--video-size", type=_value(values.shares(values.size)), default="320x240", help="(%(default)s)")
    add("--audio-seconds", type=_value(values.shares(values.positive)), default="2", help="(%(default)s)")
    add("--requests-file", type=Path, help="JSON lines with prompt, max_tokens, expect, media, instead of a mix")
    add("--media-dir", type=Path, help="real pictures, videos and sounds instead of generated ones")
    add("--repeat", type=_value(values.share), default=0.0, help="share of media that were sent before (0)")
    add("--distinct", type=_value(values.count), default=64,
        help="generated media of each kind and size; what needs more sends them again (%(default)s)")  # fmt: skip
    add("--cancel", type=_value(values.share), default=0.0, help="share of requests that are left (0)")
    add("--cancel-within", type=_value(values.duration), default=1.0, help="when they are left, drawn evenly (1s)")
    add("--ignore-eos", action="store_true", help="answers of exactly --max-tokens (ignore_eos, min_tokens)")
    add("--temperature", type=float, default=0.0, help="(0); below 0: the server's own")
    add("--extra", type=_value(values.json_object), help="a JSON object of further fields of the body")
    add("--no-stream", action="store_true", help="answers in one piece: no ttft, tpot, itl")
    add("--no-usage", action="store_true", help="do not ask for token counts; events are counted instead")
    add("--seed", type=int, default=0, help="the same seed sends the same requests (0)")


def _add_judgement(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("judgement")
    add = group.add_argument
    add("--slo", type=_value(values.objectives), help="for goodput: ttft=500ms,tpot=50ms,e2el=5s")
    add("--require", type=_value(read_requirement), action="append",
        help="for the exit code, as often as wanted: ttft.p99<=500ms, errors<=1%%, goodput>=5")  # fmt: skip
    add("--metrics", default="/metrics", help="path of the server's metrics; none: do not ask (%(default)s)")
    add("--sample", type=_value(values.duration), default=1.0, help="how often they are asked for (1s)")
    add("--shm-root", type=Path, help="the server's --shm-root, to look at its files, too")
    add("--settle", type=_value(values.duration), default=10.0, help="for the server to become idle afterwards (10s)")
    add("--memory-slack", type=_value(values.positive), default=64.0,
        help="MiB by which the server's memory may grow in the second half (%(default)s)")  # fmt: skip


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", type=Path, help="everything, each request included")
    group.add_argument("--csv", type=Path, help="a line for each request")
    group.add_argument("--html", type=Path, help="the report, one file")
    group.add_argument("--quiet", action="store_true", help="no progress")
    group.add_argument("--dry-run", action="store_true", help="show what would be sent, and send nothing")


def _value(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """For argparse, which shows the message of this error alone."""

    def value(text: str) -> Any:
        try:
            return read(text)
        except (ValueError, RequirementError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return value


def _written(value: Any) -> Any:
    """A value for the report."""
    return value if isinstance(value, bool | int | float | str | None) else str(value)
