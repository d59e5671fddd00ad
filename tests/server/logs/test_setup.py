"""One way to log, at the level and in the form that were asked for."""

import json
import logging
import os
import subprocess
import sys
import warnings

import pytest
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError

from configs.logs import LogConfig
from configs.settings import REPO
from server.logs.setup import ACCESS, complain, complain_of_defect, set_up

pytestmark = pytest.mark.usefixtures("kept_logging")
Captured = pytest.CaptureFixture[str]


def said(capsys: Captured) -> list[str]:
    """The words after each line's head."""
    return [line.split(": ", 1)[1] for line in capsys.readouterr().err.splitlines()]


def speak() -> None:
    for name in ("pixelferry.http", "model.engine.runner", ACCESS, "PIL.PngImagePlugin"):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(name).log(level, "%s %d", name, level)


def test_levels_hold_for_all_of_ours_and_libraries_say_warnings_only(capsys: Captured) -> None:
    heard = {}
    for level in ("debug", "info", "warning", "error"):
        set_up(LogConfig(level=level), "engine")
        speak()
        lines = said(capsys)
        heard[level] = [sum(line.startswith(name) for line in lines) for name in ("pixel", "model", "PIL")]
    assert heard == {"debug": [8, 4, 2], "info": [6, 3, 2], "warning": [4, 2, 2], "error": [2, 1, 1]}


def test_a_bad_form_leaves_no_line(capsys: Captured) -> None:
    """It comes as often as a client likes; the client is told."""
    set_up(LogConfig(level="debug"), "server")
    with pytest.raises(MultipartParseError):
        MultipartParser(b"b").write(b"no boundary")
    assert said(capsys) == []


def test_without_access_lines_those_of_errors_stay(capsys: Captured) -> None:
    set_up(LogConfig(access=False), "server")
    speak()
    assert [line for line in said(capsys) if line.startswith(ACCESS)] == [f"{ACCESS} 30", f"{ACCESS} 40"]
    set_up(LogConfig(access=False, level="error"), "server")
    speak()
    assert [line for line in said(capsys) if line.startswith(ACCESS)] == [f"{ACCESS} 40"]
    set_up(LogConfig(), "server")
    speak()
    assert sum(line.startswith(ACCESS) for line in said(capsys)) == 3


def test_json_is_asked_for_once_and_written_once(capsys: Captured) -> None:
    set_up(LogConfig(), "server")
    set_up(LogConfig(format="json"), "worker")
    logging.getLogger("pixelferry").info("ready")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("an old call", DeprecationWarning, stacklevel=1)
    complain("no such device", LogConfig(format="json"))
    try:
        raise KeyError("w")
    except KeyError:
        complain_of_defect("this process failed")
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in told] == ["info", "warning", "critical", "critical"]
    assert {line["process"] for line in told} == {"worker"} and told[2]["message"] == "no such device"
    assert told[3]["exception"].endswith("KeyError: 'w'")


def test_in_text_a_complaint_is_one_plain_line(capsys: Captured) -> None:
    set_up(LogConfig(), "server")
    complain("no such device", LogConfig())
    assert capsys.readouterr().err == "error: no such device\n"


TELLS = "from server.logs.setup import tell\nfor n in range(3): tell(f'line {n}')\nprint('more')"


@pytest.mark.process
def test_a_stdout_that_nobody_reads_costs_one_line_of_the_log() -> None:
    """As in `serve | head -1`, and where the disk of a redirected one is full."""
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "wb") as full, os.fdopen(writer, "wb") as closed:
        for stdout, why in ((closed, "Broken pipe"), (full, "No space left on device")):
            command = [sys.executable, "-c", TELLS]
            done = subprocess.run(command, cwd=REPO, stdout=stdout, stderr=subprocess.PIPE, text=True)
            assert done.returncode == 0
            assert done.stderr == f"stdout takes nothing any more ({why}): what is printed there is left out\n"
