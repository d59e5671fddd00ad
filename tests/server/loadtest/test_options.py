"""Flags: how values are written, defaults, what excludes what, and that no key gets into a report."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.loadtest import options as values
from server.loadtest.options import read_options
from tests.server.tables import each_of

Captured = pytest.CaptureFixture[str]


def test_without_a_flag_it_is_a_hundred_requests_on_four_streams() -> None:
    options = read_options([])
    assert (options.concurrency, options.requests, options.rate, options.seconds) == ((4,), 100, None, None)
    assert options.url == "http://127.0.0.1:8000" and options.api == "openai" and options.metrics == "/metrics"


def test_a_rate_is_an_open_loop_and_several_are_a_sweep() -> None:
    assert read_options(["--rate", "1,2.5"]).rate == (1.0, 2.5) and read_options(["--rate", "1"]).concurrency is None
    assert read_options(["--concurrency", "1,8", "--seconds", "1m"]).concurrency == (1, 8)
    assert read_options(["--seconds", "1m"]).requests is None


def test_flags_reach_their_places(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    options = read_options(
        ["--api-key-file", str(key), "--slo", "ttft=1s", "--require", "errors<=1%", "--require", "goodput>=2",
         "--mix", "image:1,text:3", "--repeat", "30%", "--temperature", "-1", "--metrics", "none", "--no-stream"]
    )  # fmt: skip
    assert options.api_key == "secret" and options.slo == {"ttft": 1.0} and len(options.require or ()) == 2
    assert options.mix.values == ("image", "text") and options.repeat == 0.3
    assert options.headers() == {"Authorization": "Bearer secret"} and options.no_stream and not options.no_usage


def test_no_key_stands_in_what_is_written() -> None:
    options = read_options(["--api-key", "secret", "--json", "x.json"])
    assert (
        options.api_key == "secret" and "secret" not in str(options.written()) and options.written()["json"] == "x.json"
    )


@each_of(
    ("args", "said"),
    [
        (["--rate", "1", "--concurrency", "2"], "only one of them"),
        (["--trace", "x", "--rate", "2"], "only one of them"),
        (["--api-key", "a", "--api-key-file", "b"], "only one of them"),
        (["--unique-media", "--shared-media", "2"], "only one of them"),
        (["--unique-media", "--repeat", "1%"], "only one of them"),
        (["--shared-media", "2", "--repeat", "1%"], "only one of them"),
        (["--unique-media", "--requests-file", "x"], "only one of them"),
        (["--shared-media", "2", "--requests-file", "x"], "only one of them"),
        (["--unique-media", "--seconds", "5"], "--unique-media: streams need --requests"),
        (["--shared-media", "0"], "no whole number above 0"),
        (["--rate", "0"], "no number above 0"),
        (["--mix", "smell"], "none of text, image"),
        (["--require", "ttft<=5"], "latencies are ttft"),
        (["--prot", "1"], "unrecognized arguments: --prot 1\n"),
        (["--concurency=1"], "unrecognized arguments: --concurency=1; did you mean '--concurrency'?\n"),
    ],
)
def test_wrong_usage_is_told(args: list[str], said: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as end:
        read_options(args)
    assert end.value.code == 2 and said in capsys.readouterr().err


def test_help_names_every_group(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as end:
        read_options(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0 and all(
        word in text for word in ("target:", "load:", "judgement:", "output:", "Exit code")
    )


@each_of(("text", "seconds"), [("500ms", 0.5), ("30", 30), ("1.5s", 1.5), ("5m", 300), ("1h", 3600)])
def test_times(text: str, seconds: float) -> None:
    assert values.duration(text) == seconds


def test_shares_have_weights_and_one_is_the_default() -> None:
    found = values.shares(values.size)("1280x720:3, 64x32")
    assert found.values == ((1280, 720), (64, 32)) and found.weights == (3.0, 1.0)
    assert values.shares(values.kind)("text:60,image+audio:40").values == ("text", "image+audio")


def test_a_share_of_nothing_is_never_drawn() -> None:
    shares = values.Shares(("a", "b"), (1.0, 0.0))
    assert {shares.draw(random.Random(seed)) for seed in range(50)} == {"a"}


def test_the_others() -> None:
    assert values.listed(values.count)("1,2,4") == (1, 2, 4)
    assert values.objectives("ttft=500ms, e2el=2s") == {"ttft": 0.5, "e2el": 2.0}
    assert (values.share("30%"), values.share("0.3")) == (0.3, 0.3)
    assert values.json_object('{"top_k": 3}') == {"top_k": 3}


@each_of(
    ("read", "text"),
    [
        (values.duration, "fast"), (values.duration, "-1s"), (values.size, "720p"), (values.size, "4x4"),
        (values.size, "99999x10"), (values.share, "1.5"), (values.share, "x"), (values.positive, "0"),
        (values.positive, "inf"), (values.count, "0"), (values.count, "1.5"), (values.kind, "smell"),
        (values.kind, "demo+image"), (values.image_format, "tiff"), (values.shares(values.count), "1:-1"),
        (values.shares(values.count), "1:0"), (values.shares(values.count), ""), (values.objectives, "speed=1s"),
        (values.objectives, "ttft"), (values.json_object, "[1]"), (values.json_object, "{"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_refused(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match="."):
        read(text)
