"""A misspelt name finds the one that was meant, and nothing else does."""

import time

import pytest

from configs.nearest import LONGEST, FlagParser, did_you_mean, nearest

KNOWN = ("temperature", "top_p", "top_k", "max_tokens", "stream")


def test_what_was_meant() -> None:
    assert nearest("temprature", KNOWN) == "temperature"
    assert nearest("max_token", iter(KNOWN)) == "max_tokens"
    assert did_you_mean("steam", KNOWN) == "; did you mean 'stream'?"


def test_a_name_of_its_own_is_told_nothing() -> None:
    assert nearest("user_id", KNOWN) is None
    assert did_you_mean("", KNOWN) == ""


def test_a_name_as_long_as_a_body_costs_nothing() -> None:
    begun = time.process_time()
    assert nearest("temperature" * 100_000, KNOWN) is None
    assert time.process_time() - begun < 0.1
    assert nearest("t" * LONGEST, KNOWN) is None


def test_a_flag_is_told_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    parser = FlagParser(prog="program", allow_abbrev=False)
    parser.add_argument("--device", metavar="NAME")
    for words in (["--devise", "cpu"], ["--devise=cpu", "--other", "devic"]):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(words)
        said = capsys.readouterr().err
        assert ended.value.code == 2 and said.endswith(f"arguments: {' '.join(words)}; did you mean '--device'?\n")
    with pytest.raises(SystemExit):
        parser.parse_args(["--device"])
    assert "did you mean" not in capsys.readouterr().err
