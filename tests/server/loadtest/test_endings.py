"""How a run ends: too many errors, a server that is gone, and Ctrl-C at any moment, once and twice."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.loadtest.command import ERRORS, FAILED, GOOD, INTERRUPTED, USAGE, VANISHED, loadtest
from server.loadtest.results.result import write_json
from server.loadtest.traffic.generated import photo
from tests.server.loadtest.fixed_delays import Delays, in_a_thread
from tests.tables import each_of

Captured = pytest.CaptureFixture[str]


@each_of(
    ("flags", "code", "said"),
    [
        ([], ERRORS, "more than 0.01 of the requests failed"),
        (["--most-errors", "10%"], GOOD, ""),
        (["--most-errors", "9%", "--require", "ttft.p50<=0.001ms"], ERRORS, "more than 0.09 of the requests failed"),
        (["--most-errors", "10%", "--require", "ttft.p50<=0.001ms"], FAILED, "missed in 1 streams"),
    ],
)  # fmt: skip
def test_more_errors_than_may_be_have_a_code_of_their_own(
    flags: list[str], code: int, said: str, capsys: Captured
) -> None:
    with in_a_thread(Delays(first=0.002, between=0.0, drop_every=10)) as endpoint:
        sent = ["--quiet", "--url", endpoint.url, "--concurrency", "1", "--requests", "20", "--warmup", "0"]
        assert loadtest([*sent, "--settle", "0", *flags]) == code
    assert said in capsys.readouterr().out


def test_the_codes_are_told_apart_and_named(capsys: Captured) -> None:
    assert len({GOOD, FAILED, USAGE, ERRORS, VANISHED, INTERRUPTED}) == 6 and INTERRUPTED == 130
    assert loadtest(["--help"]) == GOOD
    assert f"{ERRORS} more than --most-errors" in " ".join(capsys.readouterr().out.split())


@each_of("answers", [0, 30])
def test_a_server_that_is_gone_has_a_code_of_its_own(answers: int, capsys: Captured, tmp_path: Path) -> None:
    """Also where its requests failed and a requirement is missed; answers: before it goes, of 40."""
    with in_a_thread(Delays(first=0.002, between=0.0, gone_after=answers)) as endpoint:
        sent = ["--quiet", "--url", endpoint.url, "--concurrency", "1", "--requests", "40", "--warmup", "0"]
        assert loadtest([*sent, "--require", "errors<=0", "--json", str(tmp_path / "x.json")]) == VANISHED
    assert "FAILED: the server vanished: it answers no more" in capsys.readouterr().out
    assert json.loads((tmp_path / "x.json").read_text())["steps"][0]["summary"]["answered"] == answers


def interrupted(
    delays: Delays, when: Callable[[], bool], *flags: str, done: threading.Event | None = None
) -> tuple[int, float]:
    """The exit code of a run that is interrupted then, and how many seconds later it was over. done: it was."""
    pressed = []

    def press() -> None:
        while not when():
            time.sleep(0.005)
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
        if done is not None:
            done.set()

    with in_a_thread(delays) as endpoint:
        pressing = threading.Thread(target=press)
        pressing.start()
        code = loadtest(["--quiet", "--url", endpoint.url, "--requests", "6", "--settle", "60s", *flags])
        pressing.join()
        return code, time.monotonic() - pressed[0]


def test_ctrl_c_in_the_warm_up_ends_it(capsys: Captured) -> None:
    delays = Delays(first=60)
    code, later = interrupted(delays, lambda: len(delays.seen) > 0, "--warmup", "4")
    assert code == INTERRUPTED and later < 50
    assert "note: the run was interrupted" in capsys.readouterr().out and len(delays.seen) <= 4


@each_of(("seen", "answered"), [(2, None), (8, 6)], ids=["before the steps", "behind them"])
def test_ctrl_c_while_a_server_is_waited_for_ends_the_waiting(
    seen: int, answered: int | None, capsys: Captured, tmp_path: Path
) -> None:
    delays = Delays(first=0.001, between=0.0, busy_after=0 if answered is None else 1)
    path = tmp_path / "x.json"
    code, later = interrupted(
        delays, lambda: len(delays.seen) >= seen and delays.looks > 3, "--warmup", "2", "--json", str(path)
    )
    assert code == INTERRUPTED and later < 50 and "note: the run was interrupted" in capsys.readouterr().out
    found: dict[str, Any] = json.loads(path.read_text())
    assert [step["summary"]["answered"] for step in found["steps"]] == ([] if answered is None else [answered])


class Destroyed:
    """Sends the signal where what its handler raises is dropped."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@each_of("number", [signal.SIGINT, signal.SIGTERM])
@each_of("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["in front", "behind"])
def test_ctrl_c_while_requests_are_made_is_a_line(
    handler: Any, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """handler: before it began; a shell has a program that it starts behind itself (`&`) ignore Ctrl-C."""
    made = pressing_photos(monkeypatch, lambda: signal.raise_signal(number))
    delays = Delays(first=0.001, between=0.0)
    assert unsent(delays, handler) == INTERRUPTED and not delays.seen and len(made) == 1
    assert "error: interrupted before anything was sent" in capsys.readouterr().err


def test_ctrl_c_is_not_lost_in_a_destructor(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    dropped: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", dropped.append)
    pressing_photos(monkeypatch, Destroyed)
    delays = Delays(first=0.001, between=0.0)
    assert unsent(delays, signal.default_int_handler) == INTERRUPTED and not delays.seen and len(dropped) == 1
    assert "error: interrupted before anything was sent" in capsys.readouterr().err


def pressing_photos(monkeypatch: pytest.MonkeyPatch, press: Callable[[], object]) -> list[int]:
    """The first picture that is made presses; how many were begun."""
    made: list[int] = []

    def pressed(*args: Any) -> Any:
        made.append(len(made))
        if len(made) == 1:
            press()
        return photo(*args)

    monkeypatch.setattr("server.loadtest.traffic.mixes.photo", pressed)
    return made


def unsent(delays: Delays, handler: Any) -> int:
    """The exit code of a run that has six pictures to make, where SIGINT had this handler before."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        with in_a_thread(delays) as endpoint:
            flags = ["--mix", "image", "--image-sizes", "32x32", "--unique-media", "--requests", "6", "--settle", "0"]
            code = loadtest(["--quiet", "--url", endpoint.url, *flags])
            assert signal.getsignal(signal.SIGINT) is handler
            return code
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_counts_where_nobody_can_read_that_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, text: str) -> int:
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

        def flush(self) -> None: ...

    monkeypatch.setattr("sys.stderr", Full())
    delays = Delays(first=60)
    code, later = interrupted(delays, lambda: len(delays.seen) > 0, "--warmup", "0")
    assert code == INTERRUPTED and later < 50


def test_ctrl_c_while_files_are_written_lets_them_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, pressed = threading.Event(), threading.Event()

    def slowly(*args: Any) -> None:
        writing.set()
        assert pressed.wait(60)
        write_json(*args)

    monkeypatch.setattr("server.loadtest.command.write_json", slowly)
    path = tmp_path / "x.json"
    code, later = interrupted(Delays(first=0.001, between=0.0), writing.is_set, "--json", str(path), done=pressed)
    assert code == GOOD and later < 50 and json.loads(path.read_text())["steps"], "all was measured by then"


@pytest.mark.process
@each_of("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(number: signal.Signals, tmp_path: Path) -> None:
    """While a server that is busy for ever is waited for, behind the interrupted requests."""
    delays = Delays(first=60, busy_after=1)
    with in_a_thread(delays) as endpoint:
        words = ["--url", endpoint.url, "--requests", "6", "--warmup", "0", "--settle", "60s", "--quiet"]
        program = [sys.executable, "-m", "server", "loadtest", *words]
        with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while len(delays.seen) < 4:
                time.sleep(0.01)
            process.send_signal(number)
            assert process.stderr is not None and "once more ends at once" in process.stderr.readline()
            pressed = time.monotonic()
            process.send_signal(number)
            assert process.wait(55) in (-number, 128 + number) and time.monotonic() - pressed < 50
