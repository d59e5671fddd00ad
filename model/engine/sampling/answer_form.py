"""One answer's form, as the engine sees it, and the engine's end of its client's process. forms.py moves both."""

import socket
from array import array
from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from model.engine.plan import FailureCode, RequestError
from model.engine.sampling.form_messages import NONE, FormStart
from model.engine.sampling.logits_processors import BITS
from shm import Stillness
from tokenization.chat.grammar import CompiledGrammar

CODE: FailureCode = "structured_output"
SLOW_SECONDS = 0.002  # of the processor: a row whose masks take longer has no part of a step before its mask is there


class _Forms(Protocol):
    vocab_size: int  # rows of the logits

    def begin(self, form: "AnswerForm") -> None: ...

    def end(self, form: "AnswerForm") -> None: ...

    def ask(self, form: "AnswerForm") -> None: ...

    def fill(self, forms: Sequence["AnswerForm"], out: np.ndarray) -> list[int]: ...


class AnswerForm:
    """Where one answer stands in its grammar. A process knows it while its sequence runs: `begin`, `end`."""

    def __init__(
        self, forms: _Forms, grammar: CompiledGrammar, ends: tuple[int, ...], client: int, digest: bytes
    ) -> None:
        """ends: ids that end the answer."""
        self.forms, self.grammar, self.ends, self.client, self.digest = forms, grammar, ends, client, digest
        self.taken = array("i")  # tokens of the answer, without its end
        self.error: RequestError | None = None  # why it cannot go on
        self.filled = False  # its mask is that of its next token
        self.mask = np.zeros(0, np.int32)  # int32 [mask_words], which the process fills
        self.process: ClientProcess | None = None
        self.slot = NONE  # in the process
        self.n_sent = 0  # of `taken`, what the process was sent
        self.waits = False  # until the process is asked for the next mask
        self.begun = False  # the process has answered once
        self.expected = 0.0  # processor seconds that its next step is expected to take: some of the last ones took it
        self.n_lost = 0  # processes that ended in a row before its mask was there, and not over it
        self.needed = 0  # bytes that it held before it was evicted
        self.evicted_at = 0.0  # when (monotonic)

    @property
    def ready(self) -> bool:
        """Whether its next token can be drawn, or it is known that none can."""
        return self.filled or self.error is not None

    @property
    def is_slow(self) -> bool:
        """Whether a step would wait for its mask for long."""
        return self.expected > SLOW_SECONDS

    @property
    def start(self) -> FormStart:
        return FormStart(self.grammar.source, self.grammar.marks, self.taken.tobytes())

    def fresh(self) -> "AnswerForm":
        """The same for another answer to this prompt, that has no token yet."""
        return AnswerForm(self.forms, self.grammar, self.ends, self.client, self.digest)

    def begin(self) -> None:
        """Its sequence runs."""
        self.forms.begin(self)

    def end(self) -> None:
        """Its sequence runs no more. One that was preempted replays its tokens when it runs again."""
        self.forms.end(self)

    def add(self, token: int) -> None:
        """What the form does not take leaves the next mask empty."""
        if token not in self.ends:
            self.taken.append(token)
            self.filled = False
            self.forms.ask(self)

    def write_mask(self, out: np.ndarray) -> None:
        """int32 [words]: bit i is id i."""
        out[:] = self.mask[: len(out)]
        end = self.forms.vocab_size
        if self.mask.item(end >> 5) >> (end & 31) & 1:
            if end >> 5 < len(out):
                out[end >> 5] &= ~BITS[end & 31]
            for token in self.ends:
                out[token >> 5] |= BITS[token & 31]

    def refusal(self, excluded: Collection[int], allowed: np.ndarray | None) -> RequestError | None:
        """Why the answer got no token, if its form and its request's rules are why.

        excluded: ids that those rules or the model take away; allowed: int64, all that they leave, where that is not
        all. A step computes it: a set of all ids that a form lets be would take 30 ms of a large vocabulary.
        """
        if self.error is not None:
            return self.error
        mask = np.empty(-(-self.forms.vocab_size // 32), np.int32)
        self.write_mask(mask)
        left = np.unpackbits(mask.view(np.uint8), bitorder="little")
        left[[token for token in excluded if 0 <= token < len(left)]] = 0
        if (left if allowed is None else left[allowed]).any():
            return None
        return RequestError("the form of the answer and the request's other rules leave no token", CODE)


class ClientProcess:
    """The engine's end of one client's process."""

    def __init__(self, client: int, number: int, link: socket.socket, at: np.ndarray) -> None:
        """at: int32 [1]: the slot of the form that it is at."""
        self.client, self.number, self.link, self.at = client, number, link, at
        self.descriptor = link.fileno()
        self.forms: dict[int, AnswerForm] = {}  # by slot, in the order in which they began here
        # What is expected of each slot of the last message that it has not answered yet, of forms that left it, too.
        self.asked: dict[int, float] = {}
        self.asked_at = 0.0  # when it was sent (monotonic)
        self.stillness: Stillness | None = None  # once it is there
        self.charged = 0.0  # processor seconds
        self.took: float | None = None  # in all, where it has ended
        self.starts = False  # some of these begin
        self.n_slots = 0
        self.ended: list[int] = []  # slots, which the next message names
        self.nbytes = 0  # that it holds
        self.n_asked = 0  # messages that it was sent
        # The form that was evicted, what the process held before, and the number of the message that says so.
        self.evicted: tuple[AnswerForm, int, int] | None = None
