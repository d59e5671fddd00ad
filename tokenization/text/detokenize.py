"""Ids become text token by token at a constant cost, and stop strings are found in it."""

import codecs
from collections.abc import Collection, Iterable, Sequence

from tokenization.text.tokenizer import Tokenizer


class Detokenizer:
    """All pieces joined equal the whole answer decoded at once."""

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False,
        shown: Collection[int] = (),
    ) -> None:  # fmt: skip
        """`skip_special`: special tokens are no part of the text, but those of `shown`; else each stands there by name.

        `continues`: the text goes on where the prompt ended, so that a blank before its first word is a blank.
        """
        self._tokenizer = tokenizer
        self._skips = skip_special
        self._shown = shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._blanks = 0 if continues else tokenizer.leading_blanks  # that are still to be left out

    def push(self, token_id: int) -> str:
        """What this token adds: "" for a special one that is left out, and while a character is not complete."""
        if self._skips and self._tokenizer.is_special(token_id) and token_id not in self._shown:
            return ""
        text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
        if not self._blanks:
            return text
        text, self._blanks = _without_blanks(text, self._blanks)
        return text

    def flush(self) -> str:
        """What the end adds: U+FFFD where it cut a character."""
        return self._utf8.decode(b"", final=True)


def whole_text(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """What these ids spell, special tokens by their names; U+FFFD for bytes that are no whole character."""
    text = b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
    return _without_blanks(text, tokenizer.leading_blanks)[0]


def _without_blanks(text: str, n: int) -> tuple[str, int]:
    """(text without its first blanks, up to n, how many of them the text after it may still begin with)."""
    rest = text.lstrip(" ")
    gone = min(n, len(text) - len(rest))
    return text[gone:], 0 if rest else n - gone


class StopStrings:
    """Finds the first of several strings in a growing text, however tokens break it; holds back what may be one."""

    def __init__(self, stops: Sequence[str], *, shown: bool = False) -> None:
        """`shown`: the stop that was found is part of the text. Raises ValueError for an empty stop string."""
        if "" in stops:
            raise ValueError("a stop string is empty")
        self._stops = tuple(stops)
        self._shown = shown
        self._begun = [0] * len(stops)  # of each stop: how many of its characters end the text so far
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """(text safe to show, the stop that was found or ""): the first to end wins, then the longest.

        Nothing may be pushed after it.
        """
        ends: list[tuple[int, int, str]] = []  # of each complete stop: how much of `text` it takes, -its length
        for i, (stop, begun) in enumerate(zip(self._stops, self._begun, strict=True)):
            since = stop[:begun] + text  # a stop that began before has not ended, and cannot
            at = since.find(stop)
            if at >= 0:
                ends.append((at + len(stop) - begun, -len(stop), stop))
            self._begun[i] = begins(stop, since)
        held = self._held + text
        if ends:
            taken, less, found = min(ends)
            end, self._held = len(self._held) + taken, ""
            return held[: end if self._shown else end + less], found
        cut = len(held) - max(self._begun, default=0)
        self._held = held[cut:]
        return held[:cut], ""

    def flush(self) -> str:
        """What was held back, at the end of a text without a stop string."""
        shown, self._held = self._held, ""
        return shown


def begins(stop: str, text: str) -> int:
    """Characters of the longest beginning of `stop`, short of all of it, that ends `text`.

    `text` begins with what ended the one before, so that the places that are tried here are left behind for good:
    over a whole answer there are no more of them than it has characters.
    """
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return len(text) - at if at >= 0 else 0
