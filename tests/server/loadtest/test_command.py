"""The command as it is typed: exit codes, files, and two runs compared."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.commands import main
from server.loadtest.command import FAILED, GOOD, INTERRUPTED, USAGE, VANISHED, loadtest
from server.loadtest.results.hit_rates import HitRate
from server.loadtest.results.result import write_json
from tests.server.loadtest.examples import drawn, result_of
from tests.server.loadtest.fixed_delays import Delays, Endpoint, in_a_thread
from tests.tables import each_of

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with in_a_thread(Delays(first=0.002, between=0.001)) as found:
        yield found


@pytest.fixture
def url(endpoint: Endpoint) -> str:
    return endpoint.url


def test_a_run_prints_and_writes_what_was_asked_for(url: str, tmp_path: Path, capsys: Captured) -> None:
    files = [tmp_path / "deep" / name for name in ("run.json", "run.csv", "run.html")]
    flags = ["--json", str(files[0]), "--csv", str(files[1]), "--html", str(files[2])]
    assert main(["loadtest", "--url", url, "--requests", "4", "--max-tokens", "3", *flags]) == GOOD
    shown = capsys.readouterr()
    assert "4 streams: 4 requests" in shown.out and "how it is computed" not in shown.out
    assert all(f"written: {path}" in shown.err for path in files) and "4 done" in shown.err
    assert json.loads(files[0].read_text())["steps"][0]["summary"]["answered"] == 4
    assert len(files[1].read_text().splitlines()) == 5 and files[2].read_text().startswith("<!doctype html>")


@each_of(
    ("flags", "code"),
    [
        (["--require", "ttft.p99<=1us"], USAGE),
        (["--require", "ttft.p50<=1ms"], FAILED),
        (["--require", "errors<=0"], GOOD),
        (["--require", "ttft.p99<=9s"], USAGE),
        (["--require", "ttft.p99<=9s", "--require", "ttft.p50<=1ms"], FAILED),
        (["--require", "ttft.p99<=1ms"], FAILED),
    ],
)
def test_the_exit_code_follows_the_requirements(url: str, flags: list[str], code: int, capsys: Captured) -> None:
    assert loadtest(["--quiet", "--url", url, "--requests", "3", *flags]) == code
    assert ("FAILED: missed in 4 streams: ttft.p" in capsys.readouterr().out) == (code == FAILED)


@each_of(
    ("flags", "code", "said"),
    [
        (["--url", "http://127.0.0.1:1"], VANISHED, "error: no server at 127.0.0.1:1"),
        (["--url", "host:80"], USAGE, "is no http:// or https:// address"),
        (["--trace", "/nowhere"], USAGE, "/nowhere"),
        (["--media-dir", "/nowhere", "--mix", "image"], USAGE, "/nowhere"),
        (["--nonsense"], USAGE, "unrecognized"),
        (["compare", "/nowhere", "/nowhere"], USAGE, "/nowhere"),
        (["compare", "one"], USAGE, "required"),
    ],
)
def test_what_cannot_begin_is_one_line_and_a_code(flags: list[str], code: int, said: str, capsys: Captured) -> None:
    assert loadtest(flags) == code
    assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told_and_the_others_are(url: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "taken").write_text("")
    flags = ["--json", str(tmp_path / "taken" / "x.json"), "--csv", str(tmp_path / "x.csv")]
    assert loadtest(["--quiet", "--url", url, "--requests", "2", *flags]) == FAILED
    assert "error: " in capsys.readouterr().err and (tmp_path / "x.csv").exists()


def test_a_dry_run_sends_nothing(capsys: Captured) -> None:
    flags = ["--dry-run", "--mix", "image:1,text:1", "--image-sizes", "32x32", "--rate", "2", "--requests", "8"]
    assert loadtest(flags) == GOOD
    text = capsys.readouterr().out
    assert "8 requests drawn" in text and "image (32x32 jpeg)" in text and "sent from" in text


def test_ctrl_c_ends_a_run_in_order(endpoint: Endpoint, tmp_path: Path, capsys: Captured) -> None:
    before = len(endpoint.delays.seen)

    def interrupt() -> None:
        while len(endpoint.delays.seen) < before + 10:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=interrupt)
    pressing.start()
    path = tmp_path / "x.json"
    flags = ["--quiet", "--url", endpoint.url, "--rate", "20", "--requests", "1000", "--json", str(path)]
    assert loadtest(flags) == INTERRUPTED
    pressing.join()
    assert json.loads(path.read_text())["interrupted"] is True and "interrupted" in capsys.readouterr().out


def test_two_runs_are_compared(tmp_path: Path, capsys: Captured) -> None:
    for name, slower in (("a", 1.0), ("b", 1.5)):
        write_json(result_of([("x", 1.0, drawn(100, slower=slower))]), tmp_path / f"{name}.json")
    names = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert loadtest(["compare", *names]) == GOOD
    assert "B is slower" in capsys.readouterr().out
    assert loadtest(["compare", *names, "--worse-than", "10%"]) == FAILED
    assert "FAILED: slower by more than 10%: x: ttft p50" in capsys.readouterr().out
    assert loadtest(["compare", *reversed(names), "--worse-than", "10%"]) == GOOD
    assert loadtest(["compare", "--help"]) == GOOD


def test_too_few_requests_name_the_number_needed(url: str, capsys: Captured) -> None:
    assert loadtest(["--quiet", "--url", url, "--requests", "18", "--require", "ttft.p99<=9s"]) == USAGE
    said = "UNCLEAR: ttft.p99<=9s in 4 streams: 18 requests cannot tell; 100 are needed at least"
    assert said in capsys.readouterr().out


def test_a_missing_file_is_a_sentence(tmp_path: Path, capsys: Captured) -> None:
    write_json(result_of([("x", 1.0, drawn(2))]), tmp_path / "a.json")
    assert loadtest(["compare", str(tmp_path / "a.json"), str(tmp_path / "nope.json")]) == USAGE
    said = capsys.readouterr().err
    assert "nope.json: there is no such file" in said and "Errno" not in said


def test_colder_caches_are_not_called_slower(tmp_path: Path, capsys: Captured) -> None:
    for name, slower, rate in (("a", 1.0, 0.9), ("b", 1.5, 0.1)):
        run = result_of([("x", 1.0, drawn(100, slower=slower))])
        run.hit_rates = {"media": HitRate(rate=rate, says=f"{rate:.1%}")}
        write_json(run, tmp_path / f"{name}.json")
    names = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert loadtest(["compare", *names, "--worse-than", "10%"]) == USAGE
    shown = capsys.readouterr().out
    assert "hit rates: A media 90.0%" in shown and "WARNING: of media" in shown and "FAILED" not in shown
