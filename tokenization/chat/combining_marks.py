"""Runs of combining marks: Python's normaliser sorts them in quadratic time, inside a call that nothing interrupts."""

import functools
import unicodedata

import numpy as np
import numpy.typing as npt

from tokenization.chat.errors import ChatError

# Unicode's own bound for streams is 30 (UAX 15, Stream-Safe Text); decorated text piles up some 200 on one letter.
LONGEST_RUN = 256
_SLICE = 1 << 16  # characters that are looked at together: about half a millisecond
_FIRST, _LAST = 0x300, 0x1FFFF  # code points among which marks are: further planes hold ideographs, tags and no letters


def refuse_long_runs(text: str, param: str | None = None) -> None:
    """Raises ChatError with `param` where more than LONGEST_RUN combining marks follow each other."""
    if text.isascii():
        return
    for start in range(0, len(text), _SLICE):
        piece = text[start : start + _SLICE + LONGEST_RUN]  # a run that a slice cuts lies whole in this one or the next
        points = np.frombuffer(piece.encode("utf-32-le", "surrogatepass"), np.uint32)
        others = np.flatnonzero(~_marks()[np.minimum(points, _LAST)])
        ends = np.concatenate([[-1], others, [len(points)]])
        runs = np.flatnonzero(np.diff(ends) - 1 > LONGEST_RUN)
        if len(runs):
            place = start + int(ends[runs[0]]) + 1
            raise ChatError(
                f"the text has more than {LONGEST_RUN} combining marks in a row, at character {place}: no script "
                "writes so many on one letter",
                param,
            )


@functools.cache
def _marks() -> npt.NDArray[np.bool_]:
    """[_LAST + 1] bool: whether a code point, or the first of what it is composed of, has a combining class above 0.

    Those are what is sorted.
    """
    first = (unicodedata.normalize("NFD", chr(point))[0] for point in range(_FIRST, _LAST + 1))
    found = np.zeros(_LAST + 1, np.bool_)
    found[_FIRST:] = [unicodedata.combining(char) > 0 for char in first]
    return found
