"""The known name that a misspelt one is nearest to, as the end of an error message."""

from collections.abc import Iterable
from difflib import get_close_matches

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
