"""The answers to one request as they grow: tokens in, deltas of text and log-probabilities out."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from model.engine.messages import Token, TokenEvent
from server.requests.answer_boxes import Grounded
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tokenization.chat.parts import RawPrompt
from tokenization.messages import Prepared
from tokenization.text.detokenize import Detokenizer, StopStrings
from tokenization.text.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]


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
    cut: bool = False  # a stop string ended it: the engine does not know


# Where the deltas of one request go, each with the prompt that it answers.
Emit = Callable[[Prepared, Delta], Awaitable[None]]


class Answer:
    """Turns token events into deltas; a stop string ends it like a stop token."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingRequest, index: int = 0, *, continues: bool = False,
        streamed: bool = True,
    ) -> None:  # fmt: skip
        """continues: the prompt is a text that goes on, not a chat that waits for an answer.

        streamed: a delta for each push; else one when the answer has ended.
        """
        self._detokenizer = Detokenizer(tokenizer, skip_special=sampling.skip_special_tokens, continues=continues)
        self._shows_stop = sampling.include_stop_str_in_output
        self._stops = StopStrings(sampling.stop, shown=self._shows_stop) if sampling.stop else None
        self._min_tokens = sampling.min_tokens
        self._index = index
        self._streamed = streamed
        self._texts: list[str] = []  # and the tokens that no delta has had
        self._tokens: list[Token] = []
        self.n_tokens = 0
        self.finish: FinishReason | None = None

    @property
    def text(self) -> str:
        """All that was shown of it."""
        return "".join(self._texts)

    def push(self, events: Sequence[TokenEvent]) -> Delta | None:
        """The next delta. Tokens after a finish are dropped: they were sampled before the engine could be told."""
        begin, hit = len(self._texts), False
        for event in events:
            self._tokens.append(event.token)
            self.n_tokens += 1
            ends = event.finish == "stop" and not self._shows_stop  # the token that ended it, special or not
            text, hit = self._shown("" if ends else self._detokenizer.push(event.token.id))
            self._texts.append(text)
            self.finish = "stop" if hit else event.finish
            if self.finish is not None:
                if not hit:
                    self._texts.append(self._rest())
                break
        if not self._streamed and self.finish is None:
            return None
        text = "".join(self._texts[begin:]) if self._streamed else self.text
        tokens, self._tokens = tuple(self._tokens), []
        return Delta(index=self._index, text=text, tokens=tokens, finish=self.finish, cut=hit)

    def _shown(self, text: str) -> tuple[str, bool]:
        """What may be shown, and whether a stop string is complete; what came before min_tokens is not looked at."""
        if self._stops is None or not text or self.n_tokens <= self._min_tokens:
            return text, False
        return self._stops.push(text)

    def _rest(self) -> str:
        """What was held back: an incomplete character, and what might have become a stop string."""
        text, hit = self._shown(self._detokenizer.flush())
        return text if hit or self._stops is None else text + self._stops.flush()


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
            Answer(tokenizer, request.sampling, first + i, continues=continues, streamed=request.stream)
            for i in range(request.sampling.n)
        ]

    def text(self, delta: Delta) -> str:
        """All that was shown of the answer that it ended."""
        return self._answers[delta.index - self.first].text

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
