"""The known name that a misspelt one is nearest to, as the end of an error message."""

import argparse
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import NoReturn

LONGEST = 64  # characters of a name that is compared: a client's own may be a whole body
ALIKE = 0.75  # at least so much of both is the same


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar of the known names, None where none is."""
    found = [] if len(name) > LONGEST else get_close_matches(name, list(known), n=1, cutoff=ALIKE)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'temperature'?`, or nothing."""
    found = nearest(name, known)
    return "" if found is None else f"; did you mean {found!r}?"


class FlagParser(argparse.ArgumentParser):
    """argparse's own, which names the nearest flag beside one that is not known."""

    def error(self, message: str) -> NoReturn:
        what, _, words = message.partition("unrecognized arguments: ")
        if not what:
            known = re.findall(r"--[a-z-]+", self.format_usage())
            meant = [did_you_mean(word.partition("=")[0], known) for word in words.split() if word.startswith("-")]
            message += "".join(meant)
        super().error(message)
