"""Children are started by exec with two descriptors, and are known to have ended."""

from server.children.processes import died_of


def test_return_codes_in_words() -> None:
    assert [died_of(code) for code in (0, 3, -9, -11)] == ["exit code 0", "exit code 3", "SIGKILL", "SIGSEGV"]
    assert died_of(-250) == "signal 250"
