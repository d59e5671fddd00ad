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
from tokenization.text.thoughts import ThoughtParser
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
    reasoning: str | None = None  # what was added to the thought that it began in; None: to none, or it is not shown
    n_thought: int = 0  # of `tokens`, the first ones: those of the thought, and the mark that ends it
    n_reasoning: int = 0  # of these, without the mark


# Where the deltas of one request go, each with the prompt that it answers.
Emit = Callable[[Prepared, Delta], Awaitable[None]]


class Answer:
    """Turns token events into deltas; a stop string ends it like a stop token."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingRequest, index: int = 0, *, continues: bool = False,
        streamed: bool = True, offer: ToolOffer | None = None, thought_end: int | None = None,
        shows_thoughts: bool = True,
    ) -> None:  # fmt: skip
        """continues: the prompt is a text that goes on, not a chat that waits for an answer.

        streamed: a delta for each push; else one when the answer has ended.
        offer: the tools that it may call.
        thought_end: the id that ends the thought in which it begins; None: in none. Behind it stop strings count, and
        calls.
        """
        self._thought = None if thought_end is None else ThoughtParser(thought_end)
        self._shows_thoughts = shows_thoughts
        self._thoughts: list[str] = []  # that no delta has had
        self._n_told = 0  # tokens of the thought that a delta had
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
            text, least = "", self._min_tokens
            if self._thought is not None:
                text = self._behind_thought(self._thought, event, ends=ends)
                least += self._thought.n_tokens
            elif not ends:
                text = self._detokenizer.push(event.token.id)
            if event.finish is not None:
                text += self._detokenizer.flush()  # an incomplete character
            if self._stops is not None:
                if text and self.n_tokens > least:
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
        if self._thought is not None:
            delta = self._with_thought(delta, self._thought)
        return delta if self._calls is None else self._with_calls(delta, self._calls)

    def _behind_thought(self, thought: ThoughtParser, event: TokenEvent, *, ends: bool) -> str:
        """What a token adds to the words behind the thought; what it adds to that is laid by."""
        token, last = event.token.id, event.finish is not None
        marks = thought.open and token == thought.closing
        text = "" if ends or marks else self._detokenizer.push(token)
        if thought.open and (marks or last):
            text += self._detokenizer.flush()  # of a character that the mark or the end cuts
        added, text = thought.push(token, text, last=last)
        if added and self._shows_thoughts:
            self._thoughts.append(added)
        return text

    def _with_thought(self, delta: Delta, thought: ThoughtParser) -> Delta:
        """With what its tokens added to the thought: None behind it, but for an answer in one piece."""
        n_thought, self._n_told = thought.n_tokens - self._n_told, thought.n_tokens
        if not n_thought:
            return delta
        reasoning = "".join(self._thoughts) if self._shows_thoughts else None
        self._thoughts.clear()
        of_mark = 0 if thought.open else 1
        return replace(delta, reasoning=reasoning, n_thought=n_thought, n_reasoning=n_thought - of_mark)

    def _with_calls(self, delta: Delta, parser: CallParser) -> Delta:
        calls, self._pieces = joined(self._pieces), []
        called = delta.finish == "stop" and parser.called and not self._named  # of a named call vLLM, too, says "stop"
        return replace(delta, calls=calls, finish="tool_calls" if called else delta.finish)


class Answers:
    """All answers to one request; those to a body of several prompts have the indices from `first` on."""

    def __init__(
        self, request: ChatRequest, tokenizer: Tokenizer, first: int = 0, thought_end: int | None = None
    ) -> None:
        """thought_end: the id that ends the thought in which all begin; None: in none."""
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
                thought_end=thought_end,
                shows_thoughts=request.shows_thoughts,
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
