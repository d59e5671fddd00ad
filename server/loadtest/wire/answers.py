"""What a server says, whichever of the known forms it speaks: text, how it ended, token counts, an error."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

DONE = b"[DONE]"
Seconds = Annotated[float, Meta(ge=0, le=1e9)]  # what a server may say: sums of squares stay far from their end
Word = Annotated[str, Meta(max_length=64)]
Tokens = Annotated[int, Meta(ge=0, le=10**9)]
Stages = Annotated[dict[Word, Seconds], Meta(max_length=256)]


class Unreadable(ValueError):
    """An event or a body that is none of the known forms."""


class Delta(msgspec.Struct):
    """Of a chunk, or the message of an answer in one piece."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    message: Delta | None = None
    text: str | None = None
    finish_reason: Word | None = None


class Usage(msgspec.Struct):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    timings: Stages | None = None


class Body(msgspec.Struct):
    """Both OpenAI's chunk and the native event; what a form does not have stays empty."""

    choices: list[Choice] | None = None
    text: str | None = None
    finish_reason: Word | None = None
    usage: Usage | None = None
    error: Any = None


_read = msgspec.json.Decoder(Body, strict=False).decode


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event adds to an answer. `content`: it shows something to the reader of the answer."""

    text: str = ""
    content: bool = False
    finish: str | None = None
    usage: Usage | None = None
    error: str | None = None


NOTHING = Piece()


def read_piece(data: bytes) -> Piece:
    """One event, or the body of an answer in one piece. Raises Unreadable."""
    if data.strip() == DONE:
        return NOTHING
    try:
        body = _read(data)
        error = None if body.error is None else error_code(body.error)
    except (msgspec.MsgspecError, RecursionError) as defect:
        raise Unreadable(f"unreadable answer: {str(defect)[:120]}") from None
    if error is not None:
        return Piece(error=error)
    if not body.choices:
        text = body.text or ""
        return Piece(text, bool(text), body.finish_reason, body.usage)
    said = [_said(choice) for choice in body.choices]
    finish = next((choice.finish_reason for choice in body.choices if choice.finish_reason), None)
    return Piece("".join(text for text, _ in said), any(shown for _, shown in said), finish, body.usage)


def _said(choice: Choice) -> tuple[str, bool]:
    """Text of the answer, and whether anything is shown: thoughts and calls of tools are, too."""
    delta = choice.delta or choice.message
    if delta is None:
        return choice.text or "", bool(choice.text)
    shown = delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls
    return delta.content or "", bool(shown)


def error_code(error: Any) -> str:
    """A short name of an error, so that errors can be counted."""
    if isinstance(error, dict):
        for key in ("code", "type", "message"):
            if error.get(key):
                return str(error[key])[:80]
    return str(error)[:80]


@dataclass(slots=True)
class Reading:
    """One answer as it grows; times are told by whoever feeds it."""

    first: float | None = None
    last: float | None = None
    events: int = 0
    gaps: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    finish: str | None = None
    usage: Usage | None = None
    error: str | None = None
    done: bool = False

    def take(self, data: bytes, at: float) -> None:
        """One event, which came at that time. Raises Unreadable."""
        if data.strip() == DONE:
            self.done = True
            return
        piece = read_piece(data)
        self.error = self.error or piece.error
        self.usage = piece.usage or self.usage
        if piece.content:
            if self.first is None:
                self.first = at
            else:
                self.gaps.append(at - self._latest)
            self._latest = at
            self.events += 1
            self.texts.append(piece.text)
        if piece.content or piece.finish is not None:
            self.last = at
        self.finish = piece.finish or self.finish

    _latest: float = 0.0  # when the latest content came
