"""Runs of combining marks: Python's normaliser sorts them in quadratic time, inside a call that nothing interrupts."""

import unicodedata

from tokenization.chat.errors import ChatError

# Unicode's own bound for streams is 30 (UAX 15, Stream-Safe Text); decorated text piles up some 200 on one letter.
LONGEST_RUN = 256


def refuse_long_runs(text: str, param: str | None = None) -> None:
    """Raises ChatError with `param` where more than LONGEST_RUN combining marks follow each other."""
    if text.isascii():
        return
    step = LONGEST_RUN + 1  # a run that is too long holds one of these places, so no others are looked at
    for place in range(LONGEST_RUN, len(text), step):
        if not _is_mark(text[place]):
            continue
        start, end = place, place + 1
        while start > 0 and end - start < step and _is_mark(text[start - 1]):
            start -= 1
        while end < len(text) and end - start < step and _is_mark(text[end]):
            end += 1
        if end - start == step:
            raise ChatError(
                f"the text has more than {LONGEST_RUN} combining marks in a row, at character {start}: no script "
                "writes so many on one letter",
                param,
            )


def _is_mark(char: str) -> bool:
    """Whether it, or the first of what it is composed of, has a combining class above 0: those are what is sorted."""
    return unicodedata.combining(unicodedata.normalize("NFD", char)[0]) > 0
