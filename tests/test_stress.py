"""What makes the machine busy ends with the run, however that ends; the seed and words reach both runs."""

import signal
import subprocess
import sys

import pytest

from tests.stress import BURNER, FOLDERS, burning, commands

pytestmark = pytest.mark.process


def test_burners_end_with_the_block_whatever_ends_it() -> None:
    with pytest.raises(KeyboardInterrupt), burning(2) as burners:
        assert [burner.poll() for burner in burners] == [None, None]
        raise KeyboardInterrupt
    assert [burner.returncode for burner in burners] == [-signal.SIGKILL] * 2


def test_a_burner_ends_with_whoever_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", BURNER], stdin=subprocess.PIPE) as burner:
        assert burner.stdin is not None
        burner.stdin.close()
        assert burner.wait(60) == 0


def test_every_test_is_in_one_of_the_runs() -> None:
    folders, marks = commands(7, ["-x"])
    assert folders[: len(FOLDERS)] == [*FOLDERS] and folders[-3:] == marks[-3:] == ["--random-files", "7", "-x"]
    files = marks[: marks.index("-m")]
    assert "tests/hostile/test_checkpoints.py" in files and not any(name.startswith(FOLDERS) for name in files)
    assert "faults or matrix" in marks[marks.index("-m") + 1] and "faults" not in folders[folders.index("-m") + 1]
