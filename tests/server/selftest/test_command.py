"""`pixelferry selftest` as a user calls it: exit codes, the file, and the real child on this CPU."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from configs.version import commit
from server import commands as program
from server.selftest import command
from tests.tables import each_of

Captured = pytest.CaptureFixture[str]
ROW = '{"type": "CaseResult", "section": "points", "name": "%s", "verdict": "%s"}'
OPENED = '{"type": "Opened", "device": "cpu", "versions": {"torch": "2"}}'


@pytest.mark.process
def test_a_real_section_passes_and_is_written_and_a_given_model_is_told(tmp_path: Path, capfd: Captured) -> None:
    """Points are the shortest section that computes; the model's directory is not in the file."""
    (tmp_path / "config.json").write_text('{"architectures": ["No"]}')
    file = tmp_path / "found.json"
    words = ["selftest", "--device", "cpu", "--quick", "--only", "points", "--model", str(tmp_path)]
    assert program.main([*words, "--json", str(file)]) == 1
    shown, written = capfd.readouterr().out, json.loads(file.read_bytes())
    assert "ok   log_softmax" in shown and "1 failed" in shown
    assert written["device"] == "cpu" and "torch" in written["versions"]
    assert {row["verdict"] for row in written["rows"] if row["section"] == "points"} <= {"pass", "told"}
    assert written["commit"] == commit() and written["variables"]["PATH"] == "set"
    assert ["torch", "ok"] in written["doctor"] and ["NPU", "skip"] in written["doctor"]
    [given] = (row for row in written["rows"] if row["section"] != "points")
    assert (given["section"], given["verdict"]) == ("given", "fail") and "CheckpointError" in given["note"]
    assert str(tmp_path) not in file.read_text()


@pytest.mark.process
@each_of(("verdict", "code"), [("pass", 0), ("fail", 1)])
def test_a_failed_row_is_exit_code_1(
    verdict: str, code: int, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(monkeypatch, OPENED, ROW % ("cos", "pass"), ROW % ("sin", verdict))
    assert program.main(["selftest", "--only", "points"]) == code
    shown = capsys.readouterr()
    assert ("failed: sin" in shown.out) == bool(code)
    assert shown.err.splitlines()[0] == "1 section" and shown.err.splitlines()[1].startswith("[1/1] points, after 0 s")


@pytest.mark.process
def test_without_its_device_nothing_more_is_tried(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    said(monkeypatch, ROW % ("the device", "fail"))
    assert program.main(["selftest", "--device", "npu"]) == 1
    assert capsys.readouterr().out.count("FAIL the device") == 1


def test_it_says_beforehand_how_long_it_takes(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    said(monkeypatch, ROW % ("the device", "fail"))
    assert program.main(["selftest", "--quick"]) == 1
    assert capsys.readouterr().err.startswith("13 sections, about 1 minute on an idle machine, a few on a busy one\n")
    with pytest.raises(SystemExit):
        program.main(["selftest", "--help"])
    assert "It takes 3 minutes or more, --quick about 1" in " ".join(capsys.readouterr().out.split())


@each_of("words", [["--device", "tpu"], ["--only", "nothing"], ["--js", "a"]])
def test_wrong_usage(words: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["selftest", *words])
    assert ended.value.code == 2 and "usage: pixelferry selftest" in capsys.readouterr().err


def test_a_file_without_a_place_is_told_before_anything_runs(tmp_path: Path, capsys: Captured) -> None:
    assert program.main(["selftest", "--json", str(tmp_path / "none" / "a.json")]) == 2
    assert "there is no such directory" in capsys.readouterr().err


def said(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """A child that says these lines in the place of the real one."""
    code = "".join(f"print({line!r})\n" for line in lines)
    real = command.run
    monkeypatch.setattr(
        command, "run", lambda args, _, look: real(args, lambda section: [sys.executable, "-c", code], look)
    )


def test_a_given_model_is_a_section_of_its_own(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def ask(args: Namespace, start: command.Start, look: object) -> int:
        asked.extend(list(start(section)) for section in ("points", "given"))
        return 0

    assert program.main(["selftest", "--model", str(tmp_path)]) == 2
    assert "there is no config.json in it" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(command, "run", ask)
    assert program.main(["selftest", "--model", str(tmp_path), "--device", "cpu"]) == 0
    assert [words[3:] for words in asked] == [["points", "cpu", "full"], ["given", "cpu", "full", str(tmp_path)]]
