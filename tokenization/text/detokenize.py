"""Ids become text token by token at a constant cost, and stop strings are found in it."""

import codecs
from collections.abc import Iterable, Sequence

from tokenization.text.tokenizer import Tokenizer


class Detokenizer:
    """All pieces joined equal the whole answer decoded at once."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        """`skip_special`: special tokens are no part of the text; else each stands there by its name.

        `continues`: the text goes on where the prompt ended, so that a blank before its first word is a blank.
        """
        self._tokenizer = tokenizer
        self._skips = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._blanks = 0 if continues else tokenizer.leading_blanks  # that are still to be left out

    def push(self, token_id: int) -> str:
        """What this token adds: "" for a special one that is left out, and while a character is not complete."""
        if self._skips and self._tokenizer.is_special(token_id):
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
        self._tables = tuple(_fallbacks(stop) for stop in stops)
        self._matched = [0] * len(stops)  # of each stop: how many of its characters end the text so far
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text safe to show, stop found): the first to end wins, then the longest. Nothing may be pushed after it."""
        start = len(self._held)
        self._held += text
        for at in range(start, len(self._held)):
            hit = self._advance(self._held[at])
            if hit:
                shown, self._held = self._held[: at + 1 - (0 if self._shown else hit)], ""
                return shown, True
        keep = max(self._matched, default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown, False

    def flush(self) -> str:
        """What was held back, at the end of a text without a stop string."""
        shown, self._held = self._held, ""
        return shown

    def _advance(self, char: str) -> int:
        """Take one character; the length of the longest stop that it completes, or 0."""
        hit = 0
        for i, (stop, table) in enumerate(zip(self._stops, self._tables, strict=True)):
            matched = self._matched[i]
            while matched and stop[matched] != char:
                matched = table[matched - 1]
            if stop[matched] == char:
                matched += 1
            self._matched[i] = matched
            if matched == len(stop):
                hit = max(hit, matched)
        return hit


def _fallbacks(stop: str) -> tuple[int, ...]:
    """Knuth, Morris and Pratt's table: for each prefix, the length of its longest border."""
    table = [0] * len(stop)
    for i in range(1, len(stop)):
        length = table[i - 1]
        while length and stop[i] != stop[length]:
            length = table[length - 1]
        table[i] = length + (stop[i] == stop[length])
    return tuple(table)
