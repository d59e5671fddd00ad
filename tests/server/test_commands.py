"""The command line: what it prints where, and the code that it ends with."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import CheckpointError
from configs.serve import ServeConfig
from configs.settings import EMBEDDED_NAME, SECTIONS
from model.registry import architectures
from server import commands as program
from server.children.supervisor import StartFailed
from server.requests.model_card import ModelCard
from shm import OwnerError, default_root, private_root
from tests.tables import each_of
from tests.tiny.qwen2_vl import write_json

pytestmark = pytest.mark.usefixtures("kept_logging")

Captured = pytest.CaptureFixture[str]


def served(monkeypatch: pytest.MonkeyPatch, failure: BaseException | None = None) -> list[Any]:
    """Put a server that ends at once in the place of the real one; what it was given."""
    given: list[Any] = []

    async def serve(config: ServeConfig, card: ModelCard, root: Path, lines_dropped: Callable[[], int], _: Any) -> None:
        given.extend((config, card, root))
        if failure is not None:
            raise failure

    monkeypatch.setattr(program, "serve", serve)
    return given


@each_of("args", [["-h"], ["--help"], ["help"]])
def test_who_asks_for_the_usage_gets_it(args: list[str], capsys: Captured) -> None:
    assert program.main(args) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("usage: pixelferry COMMAND\n") and shown.err == ""
    assert all(word in shown.out for word in ("serve", "models", "plan", "loadtest", "doctor", "--version"))


@each_of("args", [[], ["nonsense"], ["--port", "80"], ["--version", "x"]])
def test_wrong_usage_is_told_on_stderr(args: list[str], capsys: Captured) -> None:
    assert program.main(args) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("usage: ") and shown.out == ""


@each_of(
    ("args", "last"),
    [
        (["srve"], "error: there is no command 'srve'; did you mean 'serve'?"),
        (["load-test"], "error: there is no command 'load-test'; did you mean 'loadtest'?"),
        (["nonsense"], "error: there is no command 'nonsense'"),
        (["Qwen/Qwen2-VL-2B", "--port", "1"], "error: to serve a model, type `pixelferry serve Qwen/Qwen2-VL-2B`"),
        (["--api-key=sk-1"], "error: a command comes first, as in `pixelferry serve --api-key`"),
    ],
)
def test_a_wrong_command_gets_the_right_one(args: list[str], last: str, capsys: Captured) -> None:
    assert program.main(args) == 2
    assert capsys.readouterr().err.splitlines()[-1] == last


@each_of(
    ("args", "last"),
    [
        (["models", "too"], "pixelferry models: error: unrecognized arguments: too"),
        (["models", "--jsn"], "pixelferry models: error: unrecognized arguments: --jsn; did you mean '--json'?"),
        (["openapi", "--json"], "pixelferry openapi: error: unrecognized arguments: --json"),
    ],
)
def test_listings_have_a_usage_of_their_own(args: list[str], last: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(args)
    assert ended.value.code == 2 and capsys.readouterr().err.splitlines()[-1] == last
    with pytest.raises(SystemExit) as ended:
        program.main([args[0], "--help"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith(f"usage: pixelferry {args[0]} [-h]")


def test_models_are_listed_for_programs_too(capsys: Captured) -> None:
    assert program.main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    named = [name for family in found["families"].values() for name in family["architectures"]]
    assert sorted(named) == sorted(architectures())
    pictures = [one for one in found["media"] if (one["family"], one["takes"]) == ("qwen2_vl", "image")]
    assert len(pictures) == 1 and pictures[0]["its positions"] == "step, row, column"


def test_the_settings_are_shown_in_groups(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        program.main(["serve", "--help"])
    shown = capsys.readouterr().out
    titles = [line.removesuffix(":") for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert [title for title in titles if title in SECTIONS.values()] == list(SECTIONS.values())
    assert shown.index("Media:") < shown.index("  --max-items ") < shown.index("Engine:") < shown.index("  --dtype ")
    assert shown.startswith("usage: pixelferry serve [MODEL] [FLAG ...]\n")


def test_the_doctor_is_a_command_of_its_own(capsys: Captured) -> None:
    assert program.main(["doctor", "--device", "cpu", "--shm-mib", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cpu"


@each_of("command", ["openapi", "models"])
def test_who_reads_no_further_ends_a_listing_in_silence(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pixelferry openapi | head` does."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert program.main([command]) == 0


def test_the_version_is_that_of_the_project(capsys: Captured) -> None:
    project = (Path(__file__).resolve().parents[2] / "setup.py").read_text(encoding="utf-8")
    assert program.main(["--version"]) == 0
    name, number, *commit = capsys.readouterr().out.split()
    assert name == "pixelferry" and f'\nRELEASE = "{number}"\n' in project and commit == ["(a", "checkout)"]


def test_what_can_be_served_is_listed_line_by_line(capsys: Captured) -> None:
    assert program.main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert tuple(lines[: lines.index("")]) == architectures() and "Qwen2VLForConditionalGeneration" in lines
    assert any(line.startswith("qwen2_vl ") for line in lines)


def test_settings_cards_and_root_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = served(monkeypatch)
    assert program.main(["serve", "--port", "8123", "--shm-root", str(tmp_path)]) == 0
    config, card, root = given
    assert (config.http.port, card.name, root) == (8123, EMBEDDED_NAME, private_root(tmp_path))


def test_the_users_own_root_is_taken_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIXELFERRY_SHM_ROOT", raising=False)
    given = served(monkeypatch)
    assert program.main(["serve"]) == 0
    assert given[2] == default_root()


def test_a_setting_that_is_wrong_is_one_line_and_wrong_usage(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    given = served(monkeypatch)
    assert program.main(["serve", "--port", "99999"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ") and "--port" in shown.err and shown.err.count("\n") == 1
    assert shown.out == "" and given == []


def test_in_a_log_of_json_it_is_json(capfd: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, StartFailed("it is not there"))
    assert program.main(["serve", "--log-format", "json"]) == 1
    told = json.loads(capfd.readouterr().err)
    assert (told["level"], told["process"], told["message"]) == ("critical", "server", "it is not there")


def test_a_checkpoint_of_nobody_is_one_line(tmp_path: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    given = served(monkeypatch)
    write_json(tmp_path / "config.json", {"architectures": ["Other"]})
    assert program.main(["serve", "--model", str(tmp_path)]) == 1
    shown = capfd.readouterr().err
    assert shown.startswith("error: config.json: architecture 'Other'") and shown.count("\n") == 1
    assert given == []


@each_of("error", [CheckpointError, OwnerError, StartFailed])
def test_what_keeps_a_server_from_starting_is_one_line(
    error: type[Exception], capfd: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(monkeypatch, error("it is not there"))
    assert program.main(["serve"]) == 1
    assert capfd.readouterr().err == "error: it is not there\n"


@each_of(("ended", "number"), [(KeyboardInterrupt(), signal.SIGINT), (SystemExit(), signal.SIGTERM)])
def test_a_start_that_a_signal_ends_has_its_exit_code(
    ended: BaseException, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the server decides itself what a signal means; 128 and the number, as a shell has it."""

    def listed(config: ServeConfig, _: Any) -> Any:
        raise ended

    monkeypatch.setattr(program, "with_model", listed)
    assert program.main(["serve"]) == 128 + number


def test_a_defect_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError):
        program.main(["serve"])
