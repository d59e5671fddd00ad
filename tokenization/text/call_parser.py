"""Finds tool calls in an answer as it grows: the text outside them, a call's name once it is known, its arguments."""

import secrets
from typing import Literal

import msgspec

from tokenization.chat.tool_form import ToolForm, head_of
from tokenization.chat.tool_offer import ToolOffer
from tokenization.text.detokenize import begins


class CallPiece(msgspec.Struct, frozen=True, kw_only=True):
    """What a few tokens added to a call; all of it where an answer is given in one piece."""

    index: int  # of the call in its answer
    id: str = ""  # with the first piece of a call, as its name
    name: str = ""
    arguments: str = ""  # JSON; joined they are whole, unless the answer was cut


Reading = Literal["words", "head", "arguments", "tail"]


class CallParser:
    """Reads what `tool_grammar.py` lets a model write, however its tokens cut it; any other text is words."""

    def __init__(self, offer: ToolOffer, form: ToolForm) -> None:
        self.form = form
        self._opening = form.mark + form.opening
        self._tails: tuple[tuple[str, Reading], ...] = (("}" + form.closing, "words"), ("}" + form.between, "head"))
        self._names = {head_of(tool.name): tool.name for tool in offer.tools}
        self._forced = offer.choice != "auto"
        self._state: Reading = "words"
        self._held = ""  # of the text so far, what nobody was given
        self._blanks: list[str] = []  # in front of that: an answer may be nothing else
        self._depth = 0  # of lists and objects in the arguments
        self._in_text = self._escaped = False
        self.n_calls = 0

    @property
    def called(self) -> bool:
        """Whether there are calls, and all are complete."""
        return self.n_calls > 0 and self._state == "words"

    def push(self, text: str) -> tuple[str, list[CallPiece]]:
        """The words and the pieces of calls that are sure now. Blanks in front of a call are no words."""
        self._held += text
        words: list[str] = []
        pieces: list[CallPiece] = []
        while self._step(words, pieces):
            pass
        return "".join(words), pieces

    def flush(self) -> str:
        """The words at the end of the answer. Where a call is to come, or was, what begins one is none of them."""
        held, self._held = "".join(self._blanks) + self._held, ""
        return held if self._state == "words" and not (self._forced or self.n_calls) else ""

    def _step(self, words: list[str], pieces: list[CallPiece]) -> bool:
        """Take what is sure from the held text. False: nothing more is."""
        if self._state == "words":
            return self._find_opening(words)
        if self._state == "head":
            return self._read_head(words, pieces)
        if self._state == "arguments":
            return self._read_arguments(pieces)
        return self._read_tail()

    def _find_opening(self, words: list[str]) -> bool:
        before, found, behind = self._held.partition(self._opening)
        if not found:
            before = before[: len(before) - begins(self._opening, before)]
            behind = self._held[len(before) :]
        shown = before.rstrip()
        if shown:
            words += [*self._blanks, shown]
            self._blanks.clear()
        if found:
            self._blanks.clear()
        elif len(shown) < len(before):
            self._blanks.append(before[len(shown) :])
        self._held = behind
        self._state = "head" if found else "words"
        return bool(found)

    def _read_head(self, words: list[str], pieces: list[CallPiece]) -> bool:
        for head, name in self._names.items():
            if self._held.startswith(head + "{"):
                number = f"call_{secrets.token_hex(12)}"
                pieces.append(CallPiece(index=self.n_calls, id=number, name=name))
                self.n_calls += 1
                self._held = self._held[len(head) :]
                self._state = "arguments"
                return True
        if any((head + "{").startswith(self._held) for head in self._names):
            return False
        words.append(self._opening)
        self._state = "words"
        return True

    def _read_arguments(self, pieces: list[CallPiece]) -> bool:
        end = self._end_of_arguments()
        told, self._held = self._held[:end], self._held[end:]
        if told:
            pieces.append(CallPiece(index=self.n_calls - 1, arguments=told))
        if self._depth:
            return False
        self._state = "tail"
        return True

    def _end_of_arguments(self) -> int:
        """Where the object ends in the held text, or the text itself."""
        for i, mark in enumerate(self._held):
            if self._in_text:
                self._in_text = self._escaped or mark != '"'
                self._escaped = mark == "\\" and not self._escaped
            elif mark == '"':
                self._in_text = True
            elif mark in "{[":
                self._depth += 1
            elif mark in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return i + 1
        return len(self._held)

    def _read_tail(self) -> bool:
        """Behind the arguments: the end of the call, then the next one or the closing mark."""
        for mark, state in self._tails:
            if self._held.startswith(mark):
                self._held, self._state = self._held[len(mark) :], state
                return True
            if mark.startswith(self._held):
                return False
        self._state = "words"
        return True


def joined(pieces: list[CallPiece]) -> tuple[CallPiece, ...]:
    """One for each call."""
    arguments: dict[int, list[str]] = {}
    first: dict[int, CallPiece] = {}
    for piece in pieces:
        first.setdefault(piece.index, piece)
        arguments.setdefault(piece.index, []).append(piece.arguments)
    return tuple(msgspec.structs.replace(one, arguments="".join(arguments[i])) for i, one in first.items())
