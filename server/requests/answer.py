"""The answers to one request as they grow: tokens in, deltas of text, log-probabilities and boxes out."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from model.engine.messages import Token, TokenEvent
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tokenization.chat.boxes import Box, find_boxes
from tokenization.chat.parts import Media, Prompt, RawPrompt
from tokenization.chat.tool_offer import ToolOffer
from tokenization.messages import Draw, Drawn, Prepared, PrepareFailed
from tokenization.text.call_parser import CallParser, CallPiece, joined
from tokenization.text.detokenize import Detokenizer, StopStrings
from tokenization.text.tokenizer import Tokenizer

FinishReason = Literal["stop", "length", "tool_calls"]


class Grounded(Struct, frozen=True, kw_only=True):
    """The regions of one answer; `drawn` is None where nobody asked for a picture."""

    boxes: tuple[Box, ...]
    drawn: Drawn | None = None

    def as_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"boxes": to_builtins(self.boxes)}
        if self.drawn is not None:
            body |= {"drawn": self.drawn.picture or None, "notes": list(self.drawn.notes)}
        return body


class Delta(Struct, frozen=True, kw_only=True):  # there is one for each token of a stream, and a Struct is made fast
    """What a few tokens added to an answer, or all of one that is given in one piece.

    Of a stream, `text` may be empty or lag behind `tokens`; all texts joined are whole.
    """

    text: str
    tokens: tuple[Token, ...]
    finish: FinishReason | None = None
    grounded: Grounded | None = None  # with the finish, where it was asked for
    index: int = 0  # of the answer, where a chat has several
    prompt: tuple[Token, ...] = ()  # of the prompt, from its second on: with the first delta of all, where wanted
    cut: str = ""  # the stop string that ended it: the engine does not know
    calls: tuple[CallPiece, ...] = ()  # one at most of each call


# Where the deltas of one request go, each with the prompt that it answers.
Emit = Callable[[Prepared, Delta], Awaitable[None]]


class Answer:
    """Turns token events into deltas; a stop string ends it like a stop token."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingRequest, index: int = 0, *, continues: bool = False,
        streamed: bool = True, offer: ToolOffer | None = None,
    ) -> None:  # fmt: skip
        """continues: the prompt is a text that goes on, not a chat that waits for an answer.

        streamed: a delta for each push; else one when the answer has ended.
        offer: the tools that it may call.
        """
        self._calls = None if offer is None or offer.form is None else CallParser(offer, offer.form)
        self._detokenizer = Detokenizer(
            tokenizer, skip_special=sampling.skip_special_tokens, continues=continues,
            shown=() if self._calls is None else self._calls.form.special(tokenizer.special).values(),
        )  # fmt: skip
        self._named = offer is not None and offer.choice == "named"
        self._pieces: list[CallPiece] = []  # of calls, that no delta has had
        self._shows_stop = sampling.include_stop_str_in_output
        self._stops = StopStrings(sampling.stop, shown=self._shows_stop) if sampling.stop else None
        self._min_tokens = sampling.min_tokens
        self._index = index
        self._streamed = streamed
        self.texts: list[str] = []  # all that was shown of it
        self._tokens: list[Token] = []  # that no delta has had
        self.n_tokens = 0
        self.finish: FinishReason | None = None

    def push(self, events: Sequence[TokenEvent]) -> Delta | None:
        """The next delta. Tokens after a finish are dropped: they were sampled before the engine could be told."""
        begin, hit = len(self.texts), ""
        for event in events:
            self._tokens.append(event.token)
            self.n_tokens += 1
            ends = event.finish == "stop" and not self._shows_stop  # the token that ended it, special or not
            text = "" if ends else self._detokenizer.push(event.token.id)
            if event.finish is not None:
                text += self._detokenizer.flush()  # an incomplete character
            if self._stops is not None:
                if text and self.n_tokens > self._min_tokens:
                    text, hit = self._stops.push(text)
                if event.finish is not None and not hit:
                    text += self._stops.flush()  # what might have become a stop string
            self.finish = "stop" if hit else event.finish
            if self._calls is not None:
                text, pieces = self._calls.push(text)
                text += self._calls.flush() if self.finish is not None else ""
                self._pieces += pieces
            self.texts.append(text)
            if self.finish is not None:
                break
        if not self._streamed and self.finish is None:
            return None
        text = "".join(self.texts[begin:] if self._streamed else self.texts)
        tokens, self._tokens = tuple(self._tokens), []
        delta = Delta(index=self._index, text=text, tokens=tokens, finish=self.finish, cut=hit)
        return delta if self._calls is None else self._with_calls(delta, self._calls)

    def _with_calls(self, delta: Delta, parser: CallParser) -> Delta:
        calls, self._pieces = joined(self._pieces), []
        called = delta.finish == "stop" and parser.called and not self._named  # of a named call vLLM, too, says "stop"
        return replace(delta, calls=calls, finish="tool_calls" if called else delta.finish)


class Answers:
    """All answers to one request; those to a body of several prompts have the indices from `first` on."""

    def __init__(self, request: ChatRequest, tokenizer: Tokenizer, first: int = 0) -> None:
        chat = request.chat
        continues = isinstance(chat, RawPrompt) or chat.continue_final_message
        self._streamed = request.stream
        self.first = first
        self._prompt: tuple[Token, ...] = ()
        self.n_unfinished = request.sampling.n
        self.n_tokens = 0
        self._answers = [
            Answer(
                tokenizer,
                request.sampling,
                first + i,
                continues=continues,
                streamed=request.stream,
                offer=request.tools,
            )
            for i in range(request.sampling.n)
        ]

    def text(self, delta: Delta) -> str:
        """All that was shown of the answer that it ended."""
        return "".join(self._answers[delta.index - self.first].texts)

    def push(self, events: Sequence[TokenEvent], prompt: Sequence[Token] = ()) -> list[Delta]:
        """The next delta of each answer that the tokens lengthen, in order of their index.

        prompt: goes with the first one.
        """
        found: dict[int, list[TokenEvent]] = {}
        for event in events:
            found.setdefault(event.index, []).append(event)
        deltas: list[Delta] = []
        for i in sorted(found):
            answer = self._answers[i]
            if answer.finish is not None:
                continue
            n_before = answer.n_tokens
            if (delta := answer.push(found[i])) is not None:
                deltas.append(delta)
            self.n_tokens += answer.n_tokens - n_before
            self.n_unfinished -= answer.finish is not None
        self._prompt += tuple(prompt)
        if self._prompt and deltas and (self._streamed or deltas[0].index == self.first):
            deltas[0], self._prompt = replace(deltas[0], prompt=self._prompt), ()
        return deltas


# ---- the boxes beside an answer


def boxes_of(text: str, chat: Prompt, prepared: Prepared) -> tuple[Box, ...]:
    """The boxes in an answer's text, on the latest picture. Pictures are counted from the first one of `chat`.

    Pictures that the model's window dropped are the oldest; `prepared` does not hold them. Videos and sounds are not
    pointed at.
    """
    sizes = [item.size or (0, 0) for item in prepared.media if item.kind == "image"]
    boxes = find_boxes(text, sizes)
    n_dropped = len(_pictures(chat)) - len(sizes) if boxes else 0
    return tuple(replace(box, picture=box.picture + n_dropped) for box in boxes) if n_dropped else boxes


def drawing_of(request_id: str, chat: Prompt, boxes: tuple[Box, ...]) -> Draw:
    """The worker's job: all boxes lie on one picture."""
    return Draw(request_id=request_id, media=_pictures(chat)[boxes[0].picture], boxes=boxes)


def _pictures(chat: Prompt) -> list[Media]:
    return [medium for medium in chat.media if medium.kind == "image"]


def not_drawn(request_id: str, answer: object) -> Drawn:
    """What stands in the place of a picture that could not be drawn. `answer` is the worker's, None if it died."""
    bad = isinstance(answer, PrepareFailed) and answer.kind == "bad_request"
    why = f": {answer.message}" if isinstance(answer, PrepareFailed) and bad else ""
    return Drawn(request_id=request_id, picture="", notes=(f"the picture could not be drawn{why}",))
