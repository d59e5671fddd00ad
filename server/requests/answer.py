"""One answer as it grows: tokens in, deltas of text and log-probabilities out."""

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

Finish = Literal["stop", "length"]


class Delta(Struct, frozen=True, kw_only=True):  # there is one for each token of a stream, and a Struct is made fast
    """What a few tokens added to an answer. `text` may be empty or lag behind `tokens`; all texts joined are whole."""

    text: str
    tokens: tuple[Token, ...]
    finish: Finish | None = None
    grounded: Grounded | None = None  # with the finish, where it was asked for
    index: int = 0  # of the answer, where a chat has several
    prompt: tuple[Token, ...] = ()  # of the prompt, from its second on: with the first delta of all, where wanted
    cut: bool = False  # a stop string ended it: the engine does not know


class Whole:
    """An answer that is given in one piece; keeps no more of each delta than its text and its tokens."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[Token] = []
        self._prompt: tuple[Token, ...] = ()
        self._last: Delta | None = None

    def add(self, delta: Delta) -> None:
        """The next one, in their order."""
        self._texts.append(delta.text)
        self._tokens += delta.tokens
        self._prompt = self._prompt or delta.prompt
        self._last = delta

    def delta(self) -> Delta:
        """All of them as one."""
        assert self._last is not None, "an answer has at least one delta"
        return replace(self._last, prompt=self._prompt, text="".join(self._texts), tokens=tuple(self._tokens))


# Where the deltas of one request go, each with the prompt that it answers.
Emit = Callable[[Prepared, Delta], Awaitable[None]]
Accept = Callable[[Prepared], Awaitable[None]]


class Answer:
    """Turns token events into deltas; a stop string ends it like a stop token."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingRequest, index: int = 0, *, continues: bool = False
    ) -> None:
        """continues: the prompt is a text that goes on, not a chat that waits for an answer."""
        self._detokenizer = Detokenizer(tokenizer, skip_special=sampling.skip_special_tokens, continues=continues)
        self._shows_stop = sampling.include_stop_str_in_output
        self._stops = StopStrings(sampling.stop, shown=self._shows_stop) if sampling.stop else None
        self._min_tokens = sampling.min_tokens
        self._index = index
        self.n_tokens = 0
        self.finish: Finish | None = None

    def push(self, events: Sequence[TokenEvent]) -> Delta:
        """The next delta. Tokens after a finish are dropped: they were sampled before the engine could be told."""
        texts: list[str] = []
        tokens: list[Token] = []
        hit = False
        for event in events:
            tokens.append(event.token)
            self.n_tokens += 1
            ends = event.finish == "stop" and not self._shows_stop  # the token that ended it, special or not
            text, hit = self._shown("" if ends else self._detokenizer.push(event.token.id))
            texts.append(text)
            self.finish = "stop" if hit else event.finish
            if self.finish is not None:
                if not hit:
                    texts.append(self._rest())
                break
        return Delta(index=self._index, text="".join(texts), tokens=tuple(tokens), finish=self.finish, cut=hit)

    def _shown(self, text: str) -> tuple[str, bool]:
        """What may be shown, and whether a stop string is complete; what came before min_tokens is not looked at."""
        if self._stops is None or not text or self.n_tokens <= self._min_tokens:
            return text, False
        return self._stops.push(text)

    def _rest(self) -> str:
        """What was held back: an incomplete character, and what might have become a stop string."""
        text, hit = self._shown(self._detokenizer.flush())
        return text if hit or self._stops is None else text + self._stops.flush()


def answers_to(request: ChatRequest, tokenizer: Tokenizer) -> list[Answer]:
    """One for each that is asked for."""
    chat = request.chat
    continues = isinstance(chat, RawPrompt) or chat.continue_final_message
    return [Answer(tokenizer, request.sampling, index, continues=continues) for index in range(request.sampling.n)]


def push(answers: Sequence[Answer], events: Sequence[TokenEvent], prompt: Sequence[Token] = ()) -> list[Delta]:
    """The next delta of each of a chat's answers that the tokens lengthen, in order of their index.

    prompt: goes with the first one.
    """
    if len(answers) == 1:
        deltas = [answers[0].push(events)] if answers[0].finish is None else []
    else:
        found: dict[int, list[TokenEvent]] = {}
        for event in events:
            found.setdefault(event.index, []).append(event)
        deltas = [answers[i].push(found[i]) for i in sorted(found) if answers[i].finish is None]
    return [replace(deltas[0], prompt=tuple(prompt)), *deltas[1:]] if prompt and deltas else deltas
