"""Thoughts in ids: whether a prompt ends inside one, and where that of an answer ends as it grows."""

from collections.abc import Sequence

import msgspec
import numpy as np

from tokenization.chat.errors import ChatError
from tokenization.chat.thought_form import ThoughtForm
from tokenization.text.tokenizer import Tokenizer


class ThoughtMarks(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of the marks in one vocabulary."""

    opening: int
    closing: int


def thought_marks(form: ThoughtForm | None, tokenizer: Tokenizer) -> ThoughtMarks | None:
    """None where the family declares no thoughts, or a mark is not one token."""
    if form is None:
        return None
    opening, closing = (_one_token(mark, tokenizer) for mark in (form.opening, form.closing))
    return None if opening is None or closing is None else ThoughtMarks(opening=opening, closing=closing)


def _one_token(text: str, tokenizer: Tokenizer) -> int | None:
    if text in tokenizer.special:
        return tokenizer.special[text]
    try:
        ids = tokenizer.encode(text)
    except ChatError:
        return None
    return ids[0] if len(ids) == 1 else None


def opens_thought(ids: Sequence[int] | np.ndarray, marks: ThoughtMarks, tokenizer: Tokenizer) -> bool:
    """Whether a prompt ends inside a thought: of its last turn, behind the special token that begins it.

    What users write before that, marks among it, does not count.
    """
    for i in range(len(ids) - 1, -1, -1):
        token = int(ids[i])
        if token == marks.opening:
            return True
        if token == marks.closing or token < 0 or tokenizer.is_special(token):
            return False
    return False


class ThoughtParser:
    """Tells the thought that an answer begins in from the words behind it, token by token."""

    def __init__(self, closing: int) -> None:
        """closing: the id of the mark that ends it."""
        self.closing = closing
        self.open = True
        self.n_tokens = 0  # of the thought, the mark that ended it among them
        self._held = ""  # ends of lines that no delta has had: a mark may follow
        self._spoke = False  # whether a word stands behind the thought

    def push(self, token_id: int, text: str, *, last: bool) -> tuple[str, str]:
        """What a token of this text adds to the thought, and what to the words.

        The mark's own text is what was left of a character before it. last: the answer ends with it.
        """
        if not self.open:
            if not self._spoke:
                text = text.lstrip("\n")
                self._spoke = bool(text)
            return "", text
        self.n_tokens += 1
        ends, text = token_id == self.closing, self._held + text
        self.open = not ends
        shown = text if last and not ends else text.rstrip("\n")
        self._held = "" if ends else text[len(shown) :]
        return shown, ""
